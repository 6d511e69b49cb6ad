#pragma once

#include <cstdint>

namespace stagelink::test {

// How often this program has asked for memory and for a mutex, over all threads. Counted by
// stand-ins for malloc and its kin and for pthread_mutex_lock; under a sanitizer, which has
// stand-ins of its own, nothing is counted.
struct CallCounts {
  uint64_t allocations = 0;
  uint64_t locks = 0;
};
CallCounts call_counts() noexcept;
bool calls_are_counted() noexcept;

}  // namespace stagelink::test
