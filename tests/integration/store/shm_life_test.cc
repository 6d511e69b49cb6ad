// How an arena comes, goes, and outlives the processes that use it.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <latch>
#include <thread>

#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "integration/store/store_test.h"
#include "store/shm/shm_backend.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class ShmLifeTest : public StoreTest {
 protected:
  std::string file_name() const {
    return "stagelink-" + std::to_string(::geteuid()) + ".test.arena";
  }
  std::string file_path() const { return folder() + "/" + file_name(); }
};

TEST_F(ShmLifeTest, CloseEndsWhatWaitsAndLeavesViewsAlone) {
  auto store = open_store();
  must(store->put("full", filled(8 * kMiB, 5)));
  auto view = std::make_optional(must(store->get("full")));
  auto waiting = std::make_unique<std::latch>(2);
  std::jthread getter([&] {
    waiting->count_down();
    EXPECT_REASON(Reason::kClosed, store->get("never", std::chrono::hours(1)).status());
  });
  std::jthread putter([&] {
    waiting->count_down();
    PutOptions patient;
    patient.timeout = std::chrono::hours(1);
    EXPECT_REASON(Reason::kClosed, store->put("more", filled(1, 1), patient).status());
  });
  waiting->wait();
  EXPECT_OK(store->close());
  getter.join();
  putter.join();
  EXPECT_OK(store->close());
  EXPECT_REASON(Reason::kClosed, store->put("x", {}).status());
  EXPECT_REASON(Reason::kClosed, store->get("x").status());
  EXPECT_REASON(Reason::kClosed, store->erase("x"));
  EXPECT_REASON(Reason::kClosed, store->usage().status());
  EXPECT_REASON(Reason::kClosed, store->health());
  EXPECT_TRUE(all_are(view->bytes(), 5));
  EXPECT_EQ(files().size(), 1U);
  view.reset();
  EXPECT_EQ(files().size(), 0U);
}

TEST_F(ShmLifeTest, AWriterThatOutlivesItsStoreIsRefused) {
  auto store = open_store();
  auto writer = must(store->create("key", 10));
  EXPECT_OK(store->close());
  store.reset();
  EXPECT_REASON(Reason::kClosed, writer.seal());
  EXPECT_TRUE(writer.pieces()[0].size() == 10);
}

TEST_F(ShmLifeTest, TheLastToLeaveRemovesTheArena) {
  auto store = open_store();
  {
    StoreProcess other(store_options());
    struct stat info {};
    ASSERT_EQ(::stat(file_path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600U);
    EXPECT_EQ(other.ask("put key 10 1"), "ok");
    EXPECT_OK(store->close());
    EXPECT_EQ(files(), std::vector<std::string>{file_name()});
    EXPECT_EQ(other.ask("get key 0"), "ok 10 1");
    EXPECT_EQ(other.ask("close"), "ok");
  }
  EXPECT_EQ(files().size(), 0U);
}

TEST_F(ShmLifeTest, AKeptArenaOutlivesItsProcesses) {
  StoreOptions options = store_options();
  options.arena.keep = true;
  must(must(ObjectStore::open(options))->put("key", filled(10, 6)));
  EXPECT_EQ(files().size(), 1U);
  options.arena.capacity = 0;  // Whatever is there.
  auto store = must(ObjectStore::open(options));
  EXPECT_EQ(must(store->usage()).capacity_bytes, 8 * kMiB);
  EXPECT_TRUE(all_are(must(store->get("key")).bytes(), 6));
  EXPECT_OK(store->close());
  EXPECT_EQ(std::remove(file_path().c_str()), 0);
}

TEST_F(ShmLifeTest, NothingIsMadeForWhoOnlyLooks) {
  StoreOptions options = store_options();
  options.arena.capacity = 0;
  EXPECT_REASON(Reason::kNotFound, ObjectStore::open(options).status());
  EXPECT_EQ(files().size(), 0U);
}

TEST_F(ShmLifeTest, AnotherSizeUnderTheSameNameIsRefusedAndNamesBoth) {
  auto store = open_store();
  StoreOptions other = store_options();
  other.arena.capacity = 4 * kMiB;
  const auto refused = ObjectStore::open(other);
  EXPECT_REASON(Reason::kAlreadyExists, refused.status());
  EXPECT_NE(refused.status().message().find("8 MiB"), std::string_view::npos);
  EXPECT_NE(refused.status().message().find("4 MiB"), std::string_view::npos);
  other = store_options();
  other.arena.max_objects = 255;
  EXPECT_REASON(Reason::kAlreadyExists, ObjectStore::open(other).status());
  other.arena.name = "another";
  EXPECT_OK(ObjectStore::open(other).status());
}

TEST_F(ShmLifeTest, OptionsOutOfRangeAreNamed) {
  StoreOptions options = store_options();
  options.arena.name = "a/b";
  const auto refused = ObjectStore::open(options);
  EXPECT_REASON(Reason::kInvalidArgument, refused.status());
  EXPECT_EQ(refused.status().message().substr(0, 5), "name:");
  options = store_options();
  options.arena.max_objects = 0;
  EXPECT_REASON(Reason::kInvalidArgument, ObjectStore::open(options).status());
  options = store_options();
  options.arena.directory = folder() + "/none";
  EXPECT_REASON(Reason::kNotFound, ObjectStore::open(options).status());
}

TEST_F(ShmLifeTest, AnArenaOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  auto store = open_store();
  ASSERT_EQ(::chown(file_path().c_str(), 1234, 1234), 0);
  EXPECT_REASON(Reason::kOtherUser, ObjectStore::open(store_options()).status());
  ASSERT_EQ(::chown(file_path().c_str(), 0, 0), 0);
}

TEST_F(ShmLifeTest, ManyThatOpenAtOnceShareOneArena) {
  std::vector<std::jthread> threads;
  std::latch start(8);
  std::latch opened(8);
  std::atomic<int> found{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      auto store = must(ObjectStore::open(store_options()));
      must(store->put("k" + std::to_string(i), filled(10, i)));
      opened.arrive_and_wait();
      for (int k = 0; k < 8; ++k) found += must(store->exists("k" + std::to_string(k))) ? 1 : 0;
    });
  }
  threads.clear();
  EXPECT_EQ(found, 64);
  EXPECT_EQ(files().size(), 0U);
}

TEST_F(ShmLifeTest, WhatAKilledProcessHeldIsGivenBack) {
  auto store = open_store();
  StoreProcess other(store_options());
  must(store->put("viewed", filled(3 * kMiB, 1)));
  EXPECT_EQ(other.ask("hold viewed"), "ok");
  EXPECT_EQ(other.ask("begin unsealed 4194304"), "ok");
  EXPECT_OK(store->erase("viewed"));
  EXPECT_EQ(must(store->usage()).used_bytes, 7 * kMiB);
  other.process().kill_hard();
  // The writer that needs the space finds out; nobody has told it.
  EXPECT_OK(store->put("all", filled(8 * kMiB, 2)).status());
}

TEST_F(ShmLifeTest, ARunThatWasKilledLeavesNothingToTheNext) {
  {
    StoreProcess other(store_options());
    EXPECT_EQ(other.ask("put old 10 1"), "ok");
    other.process().kill_hard();
  }
  EXPECT_EQ(files().size(), 1U);
  StoreOptions larger = store_options();
  larger.arena.capacity = 9 * kMiB;
  auto store = must(ObjectStore::open(larger));
  EXPECT_REASON(Reason::kNotFound, store->get("old").status());
}

TEST_F(ShmLifeTest, AForkedChildIsRefusedAndTouchesNothing) {
  auto store = open_store();
  must(store->put("key", filled(10, 1)));
  auto view = std::make_optional(must(store->get("key")));
  auto writer = std::make_optional(must(store->create("w", 10)));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = store->get("key").status().reason() == Reason::kForked &&
                         store->put("key", {}).status().reason() == Reason::kForked &&
                         store->erase("key").reason() == Reason::kForked &&
                         store->close().reason() == Reason::kForked &&
                         writer->seal().reason() == Reason::kForked &&
                         view->valid().reason() == Reason::kForked;
    view.reset();
    writer.reset();
    store.reset();
    const auto own = ObjectStore::open(store_options());
    ::_exit(refused && own.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(must(store->usage()).leased, 1U);
  EXPECT_OK(writer->seal());
  EXPECT_TRUE(all_are(view->bytes(), 1));
}

// Stops where the lock is held.
void stop_when_sealed(store::shm::PausePoint point, void*) {
  if (point == store::shm::PausePoint::kSealTagged) (void)::raise(SIGSTOP);
}

TEST_F(ShmLifeTest, AProcessThatIsStoppedInsideMakesOthersTimeOutAndIsNamed) {
  StoreOptions options = store_options();
  options.arena.lock_timeout = std::chrono::milliseconds(50);
  auto store = must(ObjectStore::open(options));
  must(store->put("there", filled(1, 1)));
  const pid_t child = ::fork();
  if (child == 0) {
    auto backend = store::shm::make_shm_backend(options, {&stop_when_sealed, nullptr});
    auto writer = (*backend)->create("new", 1, {Deadline::in(std::chrono::seconds(1)), {}});
    ::_exit((*writer)->seal().ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const Status refused = store->erase("nothing");
  EXPECT_REASON(Reason::kTimedOut, refused);
  EXPECT_NE(refused.message().find("process " + std::to_string(child)), std::string_view::npos)
      << refused.message();
  EXPECT_OK(store->get("there").status()) << "a hit needs no lock";
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_OK(store->erase("nothing"));
  EXPECT_OK(store->get("new").status());
}

// T44: a /dev/shm that is too small. In a mount namespace of a child's own.
int in_small_tmpfs(const std::string& folder, StoreOptions options) {
  if (::unshare(CLONE_NEWNS) != 0) return 77;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
  if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=16m") != 0) return 77;
  options.arena.capacity = 32 * kMiB;
  auto refused = ObjectStore::open(options);
  const std::string message = refused.status().to_string();
  for (const char* part : {"shm_full", "need 32", "free of 16 MiB", "capacity", "directory"}) {
    if (message.find(part) == std::string::npos) return 2;
  }
  options.arena.capacity = 8 * kMiB;
  auto store = ObjectStore::open(options);
  if (!store.ok()) return 3;
  // Somebody else takes the rest of the file system while a put is under way.
  auto writer = (*store)->create("key", 6 * kMiB);
  if (!writer.ok()) return 4;
  std::FILE* const file = std::fopen((folder + "/filler").c_str(), "w");
  const auto filler = filled(16 * kMiB, 1);
  (void)std::fwrite(filler.data(), 1, filler.size(), file);
  (void)std::fclose(file);
  if (!writer->append(filled(6 * kMiB, 2)).ok() || !writer->seal().ok()) return 5;
  PutOptions brief;
  brief.timeout = Duration::zero();
  if ((*store)->put("more", filled(6 * kMiB, 3), brief).status().reason() != Reason::kNoSpace)
    return 6;
  if (!(*store)->erase("key").ok()) return 7;
  return (*store)->put("more", filled(6 * kMiB, 3), brief).ok() ? 0 : 8;
}

TEST_F(ShmLifeTest, AFileSystemThatIsTooSmallIsAnErrorAtTheStartAndNeverASignal) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(in_small_tmpfs(folder(), store_options()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no mount namespace of our own is to be had here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace stagelink::test
