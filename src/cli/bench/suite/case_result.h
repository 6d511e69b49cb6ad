#pragma once

#include <string>

namespace stagelink::cli::bench {

enum class Goal { kAtLeast, kAtMost };

// One row of a suite: a figure and what it is held against.
struct CaseResult {
  std::string name;
  double value = 0;
  std::string unit;  // "x" for ratios.
  Goal goal = Goal::kAtLeast;
  double target = 0;

  bool holds() const noexcept { return goal == Goal::kAtLeast ? value >= target : value <= target; }
};

}  // namespace stagelink::cli::bench
