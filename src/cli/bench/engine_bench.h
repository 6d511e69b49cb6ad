#pragma once

#include <string>

#include "cli/bench/rig/measure.h"
#include "cli/bench/rig/rig.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

struct EngineBenchOptions {
  std::string transport = "auto";  // auto, or one of EngineOptions::transports.
  Op op = Op::kRead;
  MemoryKind memory = MemoryKind::kPrivate;  // Of the initiator.
  MemoryKind target_memory = MemoryKind::kShareable;
  Shape shape{.block_bytes = 4096, .blocks = 4096};
  uint32_t repetitions = 20;
  bool pin = true;
  std::string huge_pages = "try";  // off, try or require, for memory of Engine::allocate.
};

struct EngineBenchReport {
  EngineBenchOptions options;
  std::string route;  // Which transport served the region, and why.
  uint32_t repetitions = 0;
  uint32_t dropped = 0;
  bool quiet = true;
  double p50_us = 0;
  double p99_us = 0;
  double submit_p50_us = 0;
  double limit_p50_us = 0;
  double cpu_us_initiator = 0;  // Medians of what one batch cost each process.
  double cpu_us_target = 0;

  double gb_per_s() const noexcept;
  double ratio_to_limit() const noexcept;
  std::string json() const;
  std::string table() const;
};

// Measures one shape between two processes, interleaved with libc's memcpy within one, and compares
// every byte of one more batch. Errors: invalid_argument; corrupt if a byte was wrong; those of the
// engine.
Result<EngineBenchReport> run_engine_bench(const EngineBenchOptions& options);

}  // namespace stagelink::cli::bench
