// mmap, munmap and pthread_mutex_lock for the whole process of the broker, the library's included:
// the executable's symbols come first. Part of the executable alone, and of no build with a
// sanitizer, which has its own.
#include "broker/interpose.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace stagelink::broker {
namespace {

std::atomic<MappingListener*> interposed_listener{nullptr};

}  // namespace

void listen_to_mappings(MappingListener* listener) noexcept { interposed_listener = listener; }

}  // namespace stagelink::broker

#if !defined(__SANITIZE_ADDRESS__) && !defined(STAGELINK_SANITIZED)

namespace {

void* map_and_tell(void* address, size_t bytes, int protection, int flags, int fd,
                   off_t offset) noexcept {
  const long got = ::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
  if (got == -1) return MAP_FAILED;
  void* const at = reinterpret_cast<void*>(got);
  if ((flags & MAP_SHARED) != 0 && fd >= 0) {
    if (auto* listener = stagelink::broker::interposed_listener.load()) {
      listener->mapped(at, bytes, fd, offset);
    }
  }
  return at;
}

// While a worker is gone the library's thread that connects again looks at its list without any
// pause, which costs a core and keeps others from the mutex that it takes for each look. Here such
// a thread gets its pause, before it has the mutex.
struct LockHabit {
  const void* last = nullptr;
  uint64_t locks = 0;
  int64_t last_ns = 0;
  uint32_t in_a_row = 0;  // Of the same mutex, one right after the other.
  bool connects = false;
};
thread_local LockHabit lock_habit;

constexpr const char* kConnectingThread = "ZmqHandleConnec";  // As much of it as the kernel keeps.
constexpr uint32_t kLooksWithoutPause = 64;
constexpr int64_t kRightAfterNs = 200'000;
constexpr long kPauseNs = 10'000'000;

int64_t lock_clock_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The name comes some time after the start of a thread: it is looked at ever more seldom.
bool connecting_thread(LockHabit& habit) noexcept {
  ++habit.locks;
  if (!habit.connects && (habit.locks & (habit.locks - 1)) == 0) {
    char name[16] = {};
    habit.connects =
        ::prctl(PR_GET_NAME, name, 0, 0, 0) == 0 && std::strcmp(name, kConnectingThread) == 0;
  }
  return habit.connects;
}

void pause_if_it_spins(LockHabit& habit, const void* mutex) noexcept {
  const int64_t now = lock_clock_ns();
  const bool again = mutex == habit.last && now - habit.last_ns < kRightAfterNs;
  habit.in_a_row = again ? habit.in_a_row + 1 : 0;
  habit.last = mutex;
  habit.last_ns = now;
  if (habit.in_a_row <= kLooksWithoutPause) return;
  const timespec pause{0, kPauseNs};
  ::nanosleep(&pause, nullptr);
  habit.last_ns = lock_clock_ns();
}

using LockMutex = int (*)(pthread_mutex_t*);
std::atomic<LockMutex> real_lock{nullptr};

}  // namespace

#define STAGELINK_INTERPOSED extern "C" __attribute__((visibility("default")))

STAGELINK_INTERPOSED void* mmap(void* address, size_t bytes, int protection, int flags, int fd,
                                off_t offset) noexcept {
  return map_and_tell(address, bytes, protection, flags, fd, offset);
}

STAGELINK_INTERPOSED void* mmap64(void* address, size_t bytes, int protection, int flags, int fd,
                                  off_t offset) noexcept {
  return map_and_tell(address, bytes, protection, flags, fd, offset);
}

STAGELINK_INTERPOSED int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  LockMutex real = real_lock.load(std::memory_order_relaxed);  // Everybody finds the same.
  if (real == nullptr) {
    real = reinterpret_cast<LockMutex>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    if (real == nullptr) std::abort();
    real_lock.store(real, std::memory_order_relaxed);
  }
  LockHabit& habit = lock_habit;
  if (connecting_thread(habit)) pause_if_it_spins(habit, mutex);
  return real(mutex);
}

STAGELINK_INTERPOSED int munmap(void* address, size_t bytes) noexcept {
  if (auto* listener = stagelink::broker::interposed_listener.load()) {
    listener->unmapped(address, bytes);
  }
  return static_cast<int>(::syscall(SYS_munmap, address, bytes));
}

#endif
