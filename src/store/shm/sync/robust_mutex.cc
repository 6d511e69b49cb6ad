#include "store/shm/sync/robust_mutex.h"

#include <cerrno>
#include <cstring>
#include <ctime>

#include <linux/futex.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SL_TIMED_BY_WALL_CLOCK 1
#endif
#endif

namespace stagelink::store::shm {
namespace {

LockAnswer answer_of(int error) noexcept {
  switch (error) {
    case 0: return LockAnswer::kHeld;
    case EOWNERDEAD: return LockAnswer::kHolderDied;
    case ETIMEDOUT:
    case EBUSY: return LockAnswer::kTimedOut;
    default: return LockAnswer::kBroken;
  }
}

timespec after(clockid_t clock, Duration left) noexcept {
  timespec now{};
  (void)::clock_gettime(clock, &now);
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t ns = now.tv_nsec + left.count() % kSecond;
  now.tv_sec += static_cast<time_t>(left.count() / kSecond + ns / kSecond);
  now.tv_nsec = static_cast<long>(ns % kSecond);
  return now;
}

// Of the mutexes that init() makes. The C library ends the process when it meets a kind that it
// does not know, or one with a priority ceiling out of range; and the file's bytes are anybody's.
int own_kind() noexcept {
  static const int kind = [] {
    pthread_mutex_t fresh{};
    return RobustMutex::init(fresh) ? fresh.__data.__kind : -1;
  }();
  return kind;
}

}  // namespace

bool RobustMutex::init(pthread_mutex_t& mutex) noexcept {
  pthread_mutexattr_t attributes;
  if (::pthread_mutexattr_init(&attributes) != 0) return false;
  const bool made = ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
                    ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
                    ::pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_NORMAL) == 0 &&
                    ::pthread_mutex_init(&mutex, &attributes) == 0;
  (void)::pthread_mutexattr_destroy(&attributes);
  return made;
}

bool RobustMutex::is_sane() const noexcept {
  return __atomic_load_n(&mutex_.__data.__kind, __ATOMIC_RELAXED) == own_kind();
}

LockAnswer RobustMutex::lock(const Deadline& deadline) noexcept {
  const LockAnswer at_once = try_lock();
  if (at_once != LockAnswer::kTimedOut) return at_once;
#if defined(SL_TIMED_BY_WALL_CLOCK)
  // The sanitizer does not know the call below.
  const timespec at = after(CLOCK_REALTIME, deadline.left());
  return answer_of(::pthread_mutex_timedlock(&mutex_, &at));
#else
  const timespec at = after(CLOCK_MONOTONIC, deadline.left());
  return answer_of(::pthread_mutex_clocklock(&mutex_, CLOCK_MONOTONIC, &at));
#endif
}

LockAnswer RobustMutex::try_lock() noexcept {
  if (!is_sane()) return LockAnswer::kBroken;
  return answer_of(::pthread_mutex_trylock(&mutex_));
}

void RobustMutex::unlock() noexcept {
  // Held by this thread, so it is ours to mend: of another kind it would stay locked, or worse.
  if (!is_sane()) __atomic_store_n(&mutex_.__data.__kind, own_kind(), __ATOMIC_RELAXED);
  (void)::pthread_mutex_unlock(&mutex_);
}

uint32_t RobustMutex::word() const noexcept {
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(&mutex_.__data.__lock),
                         __ATOMIC_RELAXED);
}

bool RobustMutex::holder_died() const noexcept { return (word() & FUTEX_OWNER_DIED) != 0; }

int32_t RobustMutex::holder_thread() const noexcept {
  return static_cast<int32_t>(word() & FUTEX_TID_MASK);
}

}  // namespace stagelink::store::shm
