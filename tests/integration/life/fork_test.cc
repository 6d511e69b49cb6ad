// What a forked child may do with its parent's engine: be refused, without delay and without
// touching anything (T32).

#include <chrono>
#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include "integration/support/engine_test.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 1 << 20;

// Runs `body` in a forked child; exit code, or -signal.
template <typename Body>
int in_fork(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    int code = 100;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the forked child: %s\n", error.what());
    }
    ::_exit(code);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

bool is_forked(const Status& status) { return status.reason() == Reason::kForked; }

class ForkTest : public PathTest {
 protected:
  void expect_parent_lives(Link& link) {
    for (int i = 0; i < 10; ++i) {
      link.memory.reset();
      ASSERT_OK(must(link.session.read(whole(kBytes))).wait(5s));
      ASSERT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
    }
    EXPECT_OK(link.peer.notify(bytes_of("parent")));
    EXPECT_EQ(link.owner.take(5s).size(), 1U);
  }
};
SL_FOR_BOTH_PATHS(ForkTest);

TEST_P(ForkTest, InheritedObjectsAnswerForkedAtOnce) {
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  link.owner.fill(link.remote, seed());
  Transfer ended = must(link.session.read(whole(64)));
  ASSERT_OK(ended.wait(5s));
  const int code = in_fork([&] {
    const auto before = std::chrono::steady_clock::now();
    if (!is_forked(link.engine->allocate(4096).status())) return 1;
    if (!is_forked(link.engine->register_memory(link.memory.data(), 64).status())) return 2;
    if (!is_forked(link.engine->connect(link.owner.descriptor()).status())) return 3;
    if (!is_forked(link.session.read(whole(64)).status())) return 4;
    if (!is_forked(link.session.write(whole(64)).status())) return 5;
    if (!is_forked(link.peer.notify(bytes_of("child")))) return 6;
    if (!is_forked(link.peer.close())) return 7;
    if (!is_forked(ended.wait())) return 8;
    if (!is_forked(ended.status())) return 9;
    if (!is_forked(link.local.deregister())) return 10;
    if (!is_forked(link.engine->notifications(5s).status())) return 11;
    if (!is_forked(link.engine->fileno().status())) return 12;
    if (!is_forked(link.engine->close())) return 13;
    (void)ended.cancel();
    (void)ended.poll();
    if (!link.engine->metrics_text().empty()) return 14;
    return std::chrono::steady_clock::now() - before < 1s ? 0 : 15;
  });
  EXPECT_EQ(code, 0);
  expect_parent_lives(link);
}

TEST_P(ForkTest, DestroyingInheritedObjectsLeavesTheParentAlone) {
  std::optional<Link> link;
  link.emplace(reader_options("reader"), options("owner"), path(), kBytes);
  link->owner.fill(link->remote, seed());
  const Region pool = must(link->engine->allocate(kBytes));
  std::optional<Transfer> transfer(must(link->session.read(whole(kBytes))));
  const int code = in_fork([&] {
    transfer.reset();
    { const Session gone = std::move(link->session); }
    { const Peer gone = std::move(link->peer); }
    { const Region gone = std::move(link->local); }
    link->engine.reset();
    return 0;
  });
  EXPECT_EQ(code, 0);
  ASSERT_OK(transfer->wait(5s));
  transfer.reset();
  expect_parent_lives(*link);
  EXPECT_EQ(pool.bytes().size(), kBytes);
}

TEST_P(ForkTest, ChildMakesAnEngineOfItsOwn) {
  if (kThreadSanitized) GTEST_SKIP() << "it allows no thread in a forked child";
  Link link(reader_options("reader"), options("owner"), path(), kBytes);
  link.owner.fill(link.remote, seed());
  const int code = in_fork([&] {
    const auto engine = must(Engine::create(reader_options("child")));
    if (engine->instance() == link.engine->instance()) return 1;
    const PrivateMemory memory(kBytes);
    const Region local = must(engine->register_memory(memory.data(), kBytes));
    const std::array<const Region*, 1> own = {&local};
    Peer peer = must(engine->connect(link.owner.descriptor()));
    Session session = must(peer.session(own, std::span(&link.remote.desc, 1)));
    if (!must(session.read(whole(kBytes))).wait(5s).ok()) return 2;
    if (first_wrong(memory.bytes(), seed())) return 3;
    return engine->close().ok() ? 0 : 4;
  });
  EXPECT_EQ(code, 0);
  expect_parent_lives(link);
}

TEST_P(ForkTest, ExitOfAChildDoesNotDisturbATransfer) {
  Link link(reader_options("reader"), options("owner"), path(), 32 << 20);
  link.owner.fill(link.remote, seed());
  Transfer transfer = must(link.session.read(whole(32 << 20)));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(in_fork([] { return 7; }), 7);
  ASSERT_OK(transfer.wait(10s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

}  // namespace
}  // namespace stagelink::test
