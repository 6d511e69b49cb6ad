#include "integration/hot_path/call_counters.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

#include <dlfcn.h>
#include <pthread.h>

#include "integration/support/sanitized.h"

#if !defined(SL_TEST_SANITIZED) && defined(__GLIBC__)
#define SL_TEST_COUNTS_CALLS 1
#endif

namespace {

std::atomic<uint64_t> allocations{0};
std::atomic<uint64_t> locks{0};

}  // namespace

#if defined(SL_TEST_COUNTS_CALLS)

// glibc's own names for what the stand-ins below forward to.
extern "C" {
void* __libc_malloc(size_t bytes);                      // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(size_t count, size_t bytes);        // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* memory, size_t bytes);       // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(size_t alignment, size_t bytes);  // NOLINT(bugprone-reserved-identifier)

#define SL_TEST_EXPORT __attribute__((visibility("default")))

SL_TEST_EXPORT void* malloc(size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}

SL_TEST_EXPORT void* calloc(size_t count, size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}

SL_TEST_EXPORT void* realloc(void* memory, size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(memory, bytes);
}

SL_TEST_EXPORT void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}

SL_TEST_EXPORT int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

SL_TEST_EXPORT int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  locks.fetch_add(1, std::memory_order_relaxed);
  // glibc does not let programs link to its own name for this one.
  using Lock = int (*)(pthread_mutex_t*);
  static std::atomic<Lock> next{nullptr};
  Lock lock = next.load(std::memory_order_relaxed);  // All who look it up find the same.
  if (lock == nullptr) {
    lock = reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    next.store(lock, std::memory_order_relaxed);
  }
  return lock(mutex);
}
}

#endif

namespace stagelink::test {

CallCounts call_counts() noexcept {
  return {.allocations = allocations.load(), .locks = locks.load()};
}

bool calls_are_counted() noexcept {
#if defined(SL_TEST_COUNTS_CALLS)
  return true;
#else
  return false;
#endif
}

}  // namespace stagelink::test
