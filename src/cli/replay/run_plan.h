#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/replay/rank_config.h"
#include "cli/replay/workload/workload.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

// Which ranks this process runs. The halves of one run may be on different hosts.
enum class Half : uint8_t { kAll, kPrefill, kDecode };

std::string_view name_of(Half half) noexcept;

// What the user asked for, as typed.
struct ReplayOptions {
  std::string trace;        // Empty: the built-in workload.
  uint32_t requests = 200;  // 0: all.
  std::string model = "llama-3.1-8b";
  std::string dtype;  // Empty: the model's.
  std::string scale;  // Empty: one layer.
  uint32_t block_tokens = 16;
  double rate = 0;         // Trace time times this; 0: closed loop.
  uint32_t in_flight = 0;  // 0: 1 in a closed loop, 16 at a rate.
  uint32_t prefill_ranks = 1;
  uint32_t decode_ranks = 1;
  std::string transport = "auto";
  Mode mode = Mode::kRead;
  Verify verify = Verify::kFull;
  uint64_t memory_bytes = 0;  // Of each pool; 0: twice the largest request.
  bool checksum = true;
  uint32_t retries = 5;
  Duration timeout = Duration::zero();        // 0: 10 s, or 3 s with faults.
  Duration ready_timeout = Duration::zero();  // 0: by the size of the pools.
  uint64_t fault_seed = 0;
  uint64_t seed = 1;  // Of the built-in workload.
  Half half = Half::kAll;
  std::string bind;  // host:port of this half, and of the other one; empty with kAll.
  std::string peer;
  Duration start_timeout = std::chrono::seconds(60);  // For the halves to meet.
  std::string secret_file;                            // Empty: that of the engine's options.
};

// What will be run: everything checked, every size known.
struct RunPlan {
  ReplayOptions options;
  std::string model;
  uint32_t model_layers = 0;
  Workload workload;
  WorkloadSize size;
  RankConfig base;  // Of every rank but for role and number.
  uint32_t in_flight = 1;
  Duration ready_timeout = Duration::zero();  // Of a rank, from its start.

  uint64_t memory_needed() const noexcept;  // Of all processes here together.
  uint32_t ranks_here() const noexcept;
  uint32_t decode_rank_of(uint32_t request) const noexcept;
  uint32_t prefill_rank_of(uint32_t request) const noexcept;
};

// Errors: those of the trace and the model; invalid_argument names the option; no_space tells what
// a request needs and the pool or the machine has.
Result<RunPlan> make_plan(const ReplayOptions& options);

}  // namespace stagelink::cli::replay
