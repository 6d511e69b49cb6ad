#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex.h"

namespace stagelink::store::shm {

// A word on which processes sleep until something they look for may have come. Its lowest bit says
// that somebody sleeps, or is about to; the rest counts. A sleeper arms the word, looks once more,
// and sleeps unless the word has changed since; who brings something changes the word, and makes a
// system call only if the bit was set. A sleeper that dies leaves one needless wake-up behind.
//
// Thread-safety: all may run at the same time.
class WaitWord {
 public:
  explicit WaitWord(std::atomic<uint32_t>& word) noexcept : word_(word) {}

  uint32_t arm() noexcept { return word_.fetch_or(1, std::memory_order_seq_cst) | 1; }
  // May wake early: callers look again.
  void sleep(uint32_t armed, Duration timeout) const noexcept {
    futex_wait(word_, armed, timeout, FutexScope::kShared);
  }
  // True if somebody has to be woken: call wake() then.
  bool change() noexcept {
    uint32_t old = word_.load(std::memory_order_relaxed);
    // seq_cst, partner of arm(): a sleeper sees the change here, or what came before it.
    while (!word_.compare_exchange_weak(old, (old & ~1U) + 2, std::memory_order_seq_cst)) {
    }
    return (old & 1) != 0;
  }
  void wake() noexcept { futex_wake_all(word_, FutexScope::kShared); }

 private:
  std::atomic<uint32_t>& word_;
};

}  // namespace stagelink::store::shm
