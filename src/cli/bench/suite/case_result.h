#pragma once

#include <optional>
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
  // The value that streaming memcpy within one process would give in the engine's place, where the
  // target was set on another machine's peer. A target beyond it cannot be reached here.
  std::optional<double> limit = std::nullopt;

  bool holds() const noexcept { return goal == Goal::kAtLeast ? value >= target : value <= target; }
};

}  // namespace stagelink::cli::bench
