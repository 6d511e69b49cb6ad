#pragma once

#include <string_view>

#include "cli/bench/suite/suite_context.h"

namespace stagelink::cli::bench {

// Another library's program on the work unit.
struct PeerRun {
  std::string_view program;  // A script of bench/peers, or a program of build/peers-venv.
  std::string_view setting;  // NAME=VALUE in its environment; empty: none.
  Shape shape;
};

// The library's median for reading the shape. Errors: not_found names what is missing; corrupt if
// it moved a wrong byte; those of run_child.
Result<double> peer_us(const SuiteContext& context, const PeerRun& run);

}  // namespace stagelink::cli::bench
