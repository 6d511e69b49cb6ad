#include "transport/poller.h"

#include <atomic>
#include <filesystem>
#include <functional>
#include <iterator>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/deadline.h"
#include "integration/support/sanitized.h"

namespace stagelink::transport {
namespace {

class Handler final : public PollHandler {
 public:
  void on_ready(uint32_t events) override {
    ++calls;
    last = events;
    if (then) then();
  }
  int calls = 0;
  uint32_t last = 0;
  std::function<void()> then;
};

class Task final : public PollTask {
 public:
  void run() override {
    ++runs;
    if (then) then();
  }
  int runs = 0;
  std::function<void()> then;
};

struct PollerTest : testing::Test {
  PollerTest() : poller(std::move(*Poller::create())) {
    int fds[2];
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
  void run_now() { poller->run_once(Duration::zero()); }
  std::unique_ptr<Poller> poller;
  UniqueFd a;
  UniqueFd b;
};

TEST_F(PollerTest, TellsAHandlerThatItsFdIsReady) {
  Handler handler;
  ASSERT_TRUE(poller->add(a.get(), EPOLLIN, &handler).ok());
  run_now();
  EXPECT_EQ(handler.calls, 0);
  ASSERT_EQ(::write(b.get(), "x", 1), 1);
  run_now();
  EXPECT_EQ(handler.calls, 1);
  EXPECT_EQ(handler.last, uint32_t{EPOLLIN});
  ASSERT_TRUE(poller->modify(a.get(), EPOLLOUT, &handler).ok());
  run_now();
  EXPECT_EQ(handler.last, uint32_t{EPOLLOUT});
  poller->remove(a.get(), &handler);
  run_now();
  EXPECT_EQ(handler.calls, 2);
}

TEST_F(PollerTest, AHandlerRemovedInTheSameRoundIsNotCalled) {
  Handler first;
  Handler second;
  ASSERT_TRUE(poller->add(a.get(), EPOLLOUT, &first).ok());
  ASSERT_TRUE(poller->add(b.get(), EPOLLOUT, &second).ok());
  // Both are ready; whichever comes first removes the other.
  first.then = [&] { poller->remove(b.get(), &second); };
  second.then = [&] { poller->remove(a.get(), &first); };
  run_now();
  EXPECT_EQ(first.calls + second.calls, 1);
}

TEST_F(PollerTest, RunsTasksOnceInTheOrderOfPosting) {
  std::vector<int> order;
  Task tasks[3];
  for (int i = 0; i < 3; ++i) {
    tasks[i].then = [&order, i] { order.push_back(i); };
    poller->post(tasks[i]);
  }
  run_now();
  run_now();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST_F(PollerTest, ATaskThatPostsItselfDoesNotKeepTheLoopFromItsEvents) {
  Handler handler;
  ASSERT_TRUE(poller->add(a.get(), EPOLLOUT, &handler).ok());
  Task task;
  task.then = [&] { poller->post(task); };
  poller->post(task);
  for (int i = 0; i < 10; ++i) run_now();
  EXPECT_EQ(handler.calls, 10);
  EXPECT_GE(task.runs, 10);
  EXPECT_LE(task.runs, 20);
}

TEST_F(PollerTest, AForgottenTaskDoesNotRun) {
  Task tasks[3];
  for (Task& task : tasks) poller->post(task);
  EXPECT_TRUE(poller->forget(tasks[2]));
  EXPECT_FALSE(poller->forget(tasks[2]));
  Task late;
  poller->post(late);
  tasks[0].then = [&] { EXPECT_TRUE(poller->forget(tasks[1])); };
  run_now();
  EXPECT_EQ(tasks[0].runs, 1);
  EXPECT_EQ(tasks[1].runs, 0);
  EXPECT_EQ(tasks[2].runs, 0);
  EXPECT_EQ(late.runs, 1);
}

TEST_F(PollerTest, WakeEndsTheNextWaitToo) {
  poller->wake();
  const Deadline deadline = Deadline::in(std::chrono::seconds(20));
  poller->run_once(std::chrono::seconds(30));
  EXPECT_FALSE(deadline.passed());
}

TEST_F(PollerTest, AWaitEndsAtItsTimeoutAndNotBefore) {
  const Deadline deadline = Deadline::in(std::chrono::milliseconds(20));
  poller->run_once(std::chrono::milliseconds(20));
  EXPECT_TRUE(deadline.passed());
}

TEST_F(PollerTest, TasksOfManyThreadsAllRun) {
  constexpr int kThreads = 4;
  constexpr int kPosts = 2000;
  std::atomic<int> runs{0};
  std::atomic<bool> stop{false};
  std::thread loop([&] {
    while (!stop) poller->run_once(std::chrono::seconds(20));
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::atomic<int> mine{0};
      Task task;
      task.then = [&] {
        ++runs;
        ++mine;
      };
      for (int i = 0; i < kPosts; ++i) {
        poller->post(task);
        while (mine <= i) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  poller->wake();
  loop.join();
  EXPECT_EQ(runs, kThreads * kPosts);
}

TEST_F(PollerTest, ACloseGivesTheDescriptorsBackWhileOthersWake) {
  const auto count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  Handler handler;
  ASSERT_TRUE(poller->add(a.get(), EPOLLIN, &handler).ok());
  const auto before = count();
  std::atomic<bool> stop{false};
  std::vector<std::thread> wakers;
  for (int i = 0; i < 3; ++i) {
    wakers.emplace_back([&] {
      while (!stop) poller->wake();
    });
  }
  poller->close();
  EXPECT_EQ(count(), before - 2);
  // The numbers are given out again; whatever gets them must not be written to.
  const UniqueFd one(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const UniqueFd two(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (int i = 0; i < 1000; ++i) poller->wake();
  stop = true;
  for (std::thread& waker : wakers) waker.join();
  uint64_t rings = 0;
  EXPECT_EQ(::read(one.get(), &rings, sizeof(rings)), -1);
  EXPECT_EQ(::read(two.get(), &rings, sizeof(rings)), -1);
  EXPECT_FALSE(poller->add(b.get(), EPOLLIN, &handler).ok());
  poller->remove(a.get(), &handler);  // As late owners do.
}

TEST(PollerLimitTest, SaysThatTheProcessHasTooManyOpenFiles) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer needs fds of its own";
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto poller = Poller::create();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(poller.status().reason(), Reason::kNofile);
}

}  // namespace
}  // namespace stagelink::transport
