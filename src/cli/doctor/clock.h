#pragma once

#include <chrono>
#include <vector>

#include "cli/doctor/finding.h"

namespace stagelink::cli::doctor {

// Both clocks at one moment.
struct ClockReading {
  std::chrono::nanoseconds monotonic{};
  std::chrono::nanoseconds realtime{};  // Since 1970.

  static ClockReading now() noexcept;
};

struct ClockState {
  ClockReading before;  // Some time apart.
  ClockReading after;
  bool synchronised = true;  // The kernel's own word.
};

std::vector<Finding> judge_clock(const ClockState& state);
// `before`: from the start of the whole examination.
std::vector<Finding> check_clock(const ClockReading& before);

}  // namespace stagelink::cli::doctor
