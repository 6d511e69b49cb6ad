#include "cli/bench/rig/percentile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace stagelink::cli::bench {

double percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto count = static_cast<double>(values.size());
  const double rank = std::ceil(std::clamp(part, 0.0, 1.0) * count);
  const size_t index = rank < 1 ? 0 : static_cast<size_t>(rank) - 1;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(index);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace stagelink::cli::bench
