#pragma once

#include <atomic>
#include <cstdint>

#include "stagelink/engine_options.h"

namespace stagelink {

// Futexes that also work between processes (std::atomic::wait is private to one process).
enum class FutexScope : uint8_t { kProcess, kShared };

// Sleeps while `word` is `expected`, at most `timeout`. May wake early: callers loop.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Duration timeout,
                FutexScope scope) noexcept;
// Wakes all sleepers.
void futex_wake_all(std::atomic<uint32_t>& word, FutexScope scope) noexcept;

}  // namespace stagelink
