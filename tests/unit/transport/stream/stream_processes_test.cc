#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

// The owner is a child process.
struct StreamProcessesTest : testing::Test, StreamChannel::Owner {
  StreamProcessesTest() : memory(16 << 20), random(random_u64()) {
    fill_random(memory, random);
    auto [ours, theirs] = socket_pair();
    // The child's copy of `memory` is its own from the fork on, and so is its registry, whose first
    // registration the parent can foretell: a registry of its own gives the same row.
    const auto twin = std::move(*memory::RegionRegistry::create(InstanceId{5, 5}, 16));
    const auto row = *twin->add(memory.data(), memory.size(), Access::kReadWrite);
    ref = ref_of(*row);
    poller = std::move(*Poller::create());
    const int our_fd = ours.get();
    child = ::fork();
    if (child == 0) {
      ::close(our_fd);
      serve(std::move(theirs));
    }
    channel = StreamChannel::create(*poller, std::move(ours), *this);
  }
  ~StreamProcessesTest() override {
    channel->close(Status(Reason::kClosed, "test over"));
    ::waitpid(child, nullptr, 0);
  }
  [[noreturn]] void serve(UniqueFd fd) {
    FakeMetrics metrics;
    auto registry = memory::RegionRegistry::create(InstanceId{5, 5}, 16);
    auto loop = Poller::create();
    if (!registry.ok() || !loop.ok()) ::_exit(2);
    StreamServer server(**loop, **registry, metrics);
    if (!(*registry)->add(memory.data(), memory.size(), Access::kReadWrite).ok()) ::_exit(3);
    if (!server.serve(std::move(fd), InstanceId{1, 1}).ok()) ::_exit(4);
    while (server.connections() > 0) (*loop)->run_once(std::chrono::seconds(60));
    ::_exit(0);
  }
  void on_lost(StreamChannel&, const Status& why) override { lost = why; }
  void finish(const TestRequest& request) {
    const Deadline deadline = Deadline::in(std::chrono::seconds(30));
    while (!request.done() && !deadline.passed()) poller->run_once(deadline.left());
    ASSERT_EQ(request.ended, 1);
  }

  std::vector<std::byte> memory;
  SplitMix64 random;
  RemoteRegionRef ref;
  std::unique_ptr<Poller> poller;
  pid_t child = -1;
  std::shared_ptr<StreamChannel> channel;
  std::optional<Status> lost;
};

TEST_F(StreamProcessesTest, WritesReachTheOtherProcessAndComeBack) {
  std::vector<std::byte> sent(memory.size());
  fill_random(sent, random);
  TestRequest write;
  prepare(write, Direction::kWrite, {{sent.data(), 0, sent.size(), 0}}, {ref});
  std::vector<std::byte> got(memory.size());
  TestRequest before;
  prepare(before, Direction::kRead, {{got.data(), 0, got.size(), 0}}, {ref});
  channel->post(before);
  finish(before);
  EXPECT_TRUE(got == memory);
  channel->post(write);
  finish(write);
  ASSERT_TRUE(write.status.ok()) << write.status.to_string();
  TestRequest after;
  prepare(after, Direction::kRead, {{got.data(), 0, got.size(), 0}}, {ref});
  channel->post(after);
  finish(after);
  EXPECT_TRUE(got == sent);
}

TEST_F(StreamProcessesTest, AKilledOwnerEndsTheRequestAtOnce) {
  std::vector<std::byte> got(memory.size());
  for (int round = 0; round < 3; ++round) poller->run_once(Duration::zero());
  TestRequest request;
  prepare(request, Direction::kRead, {{got.data(), 0, got.size(), 0}}, {ref});
  ::kill(child, SIGSTOP);
  channel->post(request);
  poller->run_once(Duration::zero());
  ::kill(child, SIGKILL);
  finish(request);
  EXPECT_EQ(request.status.reason(), Reason::kConnectionCut) << request.status.to_string();
  EXPECT_TRUE(lost.has_value());
}

TEST_F(StreamProcessesTest, AStoppedOwnerCostsTheDeadlineAndGoesOnLater) {
  std::vector<std::byte> got(memory.size());
  ::kill(child, SIGSTOP);
  TestRequest late;
  prepare(late, Direction::kRead, {{got.data(), 0, got.size(), 0}}, {ref});
  late.deadline = Deadline::in(std::chrono::milliseconds(30));
  channel->post(late);
  for (int i = 0; i < 1000 && !late.done(); ++i) {
    poller->run_once(std::chrono::milliseconds(5));
    channel->tick();
  }
  EXPECT_EQ(late.status.reason(), Reason::kTimedOut);
  ::kill(child, SIGCONT);
  TestRequest next;
  prepare(next, Direction::kRead, {{got.data(), 0, got.size(), 0}}, {ref});
  channel->post(next);
  finish(next);
  EXPECT_TRUE(next.status.ok()) << next.status.to_string();
  EXPECT_TRUE(got == memory);
}

}  // namespace
}  // namespace stagelink::transport
