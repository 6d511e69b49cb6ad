#include "base/futex.h"

#include <new>
#include <thread>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/deadline.h"

namespace stagelink {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(FutexTest, AChangedWordReturnsAtOnce) {
  const std::atomic<uint32_t> word{1};
  const Deadline deadline = Deadline::in(seconds(20));
  futex_wait(word, 0, seconds(30), FutexScope::kProcess);
  EXPECT_FALSE(deadline.passed());
}

TEST(FutexTest, AnUnchangedWordWaitsForTheTimeout) {
  const std::atomic<uint32_t> word{0};
  const Deadline deadline = Deadline::in(milliseconds(20));
  while (!deadline.passed()) futex_wait(word, 0, deadline.left(), FutexScope::kProcess);
  SUCCEED();
}

TEST(FutexTest, WakeReachesAThread) {
  std::atomic<uint32_t> word{0};
  std::jthread waker([&] {
    word.store(1);
    futex_wake_all(word, FutexScope::kProcess);
  });
  const Deadline deadline = Deadline::in(seconds(20));
  while (word.load() == 0 && !deadline.passed()) {
    futex_wait(word, 0, deadline.left(), FutexScope::kProcess);
  }
  EXPECT_EQ(word.load(), 1U);
}

TEST(FutexTest, WakeReachesAnotherProcess) {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* words = new (page) std::atomic<uint32_t>[2] {};
  const pid_t child = ::fork();
  if (child == 0) {
    words[1].store(1);  // About to sleep.
    futex_wake_all(words[1], FutexScope::kShared);
    const Deadline deadline = Deadline::in(seconds(20));
    while (words[0].load() == 0 && !deadline.passed()) {
      futex_wait(words[0], 0, deadline.left(), FutexScope::kShared);
    }
    ::_exit(words[0].load() == 1 && !deadline.passed() ? 0 : 1);
  }
  const Deadline deadline = Deadline::in(seconds(20));
  while (words[1].load() == 0 && !deadline.passed()) {
    futex_wait(words[1], 0, deadline.left(), FutexScope::kShared);
  }
  words[0].store(1);
  futex_wake_all(words[0], FutexScope::kShared);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::munmap(page, 4096);
}

}  // namespace
}  // namespace stagelink
