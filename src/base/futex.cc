#include "base/futex.h"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace stagelink {
namespace {

int operation(int op, FutexScope scope) noexcept {
  return scope == FutexScope::kProcess ? op | FUTEX_PRIVATE_FLAG : op;
}

}  // namespace

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Duration timeout,
                FutexScope scope) noexcept {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec ts{};
  ts.tv_sec = static_cast<time_t>(seconds.count());
  ts.tv_nsec = static_cast<long>((timeout - seconds).count());
  // EAGAIN, EINTR and ETIMEDOUT all mean "look again".
  ::syscall(SYS_futex, &word, operation(FUTEX_WAIT, scope), expected, &ts, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word, FutexScope scope) noexcept {
  ::syscall(SYS_futex, &word, operation(FUTEX_WAKE, scope), INT_MAX, nullptr, nullptr, 0);
}

}  // namespace stagelink
