#include "memory/pin_gate.h"

#include "base/futex.h"

namespace stagelink::memory {
namespace {

constexpr uint32_t kClosed = uint32_t{1} << 31;
constexpr uint32_t kMaxPins = kClosed - 1;

}  // namespace

bool PinGate::try_pin() noexcept {
  uint32_t word = word_.load(std::memory_order_relaxed);
  while ((word & kClosed) == 0 && word != kMaxPins) {
    // Acquire, partner: the release in unpin() of an earlier use, so that uses of one region by
    // different threads are in order where they touch the same state.
    if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void PinGate::unpin() noexcept {
  // Release, partner: the acquire load in wait_unpinned(): all that happened under the pin is over
  // for the one who then frees the memory.
  if (word_.fetch_sub(1, std::memory_order_release) == (kClosed | 1)) {
    futex_wake_all(word_, FutexScope::kProcess);
  }
}

void PinGate::close() noexcept {
  const uint32_t before = word_.fetch_or(kClosed);
  if (before == 0) futex_wake_all(word_, FutexScope::kProcess);
}

bool PinGate::closed() const noexcept { return (word_.load() & kClosed) != 0; }

bool PinGate::wait_unpinned(const Deadline& deadline) noexcept {
  while (true) {
    // Acquire, partner: the release in unpin().
    const uint32_t word = word_.load(std::memory_order_acquire);
    if (word == kClosed) return true;
    const Duration left = deadline.left();
    if (left == Duration::zero()) return false;
    futex_wait(word_, word, left, FutexScope::kProcess);
  }
}

uint32_t PinGate::pins() const noexcept { return word_.load() & kMaxPins; }

}  // namespace stagelink::memory
