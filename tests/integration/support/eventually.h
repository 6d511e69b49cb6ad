#pragma once

#include <chrono>
#include <thread>

#include "base/deadline.h"

namespace stagelink::test {

// For what another thread or process does in its own time and tells nobody: looks again and again,
// up to a deadline. True if it came true.
template <typename Condition>
bool eventually(Condition&& condition, Duration timeout = std::chrono::seconds(10)) {
  const Deadline deadline = Deadline::in(timeout);
  while (!condition()) {
    if (deadline.passed()) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace stagelink::test
