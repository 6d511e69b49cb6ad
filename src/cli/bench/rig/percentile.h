#pragma once

#include <vector>

namespace stagelink::cli::bench {

// The value below which `part` (0 to 1) of the values lie, by nearest rank; 0 of none.
double percentile(std::vector<double> values, double part);

}  // namespace stagelink::cli::bench
