#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/replay/workload/layout.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

enum class Role : uint8_t { kPrefill, kDecode };
enum class Mode : uint8_t { kRead, kWrite };           // Decode pulls, or prefill pushes.
enum class Verify : uint8_t { kFull, kSample, kOff };  // Sample: every 16th block.

inline constexpr uint32_t kSampleEvery = 16;

std::string_view name_of(Role role) noexcept;
std::string_view name_of(Mode mode) noexcept;
std::string_view name_of(Verify verify) noexcept;

// All that one rank process is told when it starts.
struct RankConfig {
  Role role = Role::kPrefill;
  uint32_t rank = 0;
  uint32_t prefill_ranks = 1;
  uint32_t decode_ranks = 1;
  Mode mode = Mode::kRead;
  Verify verify = Verify::kFull;
  bool checksum = true;
  uint32_t retries = 5;
  uint32_t limit_every = 1;      // Measure the limit at every n-th request; 0: never.
  Layout layout;                 // Of this rank's pool.
  uint32_t largest_request = 0;  // In blocks.
  std::vector<std::string> transports = EngineOptions().transports;
  std::string bind;         // Of the engine; empty: as the user's configuration says.
  std::string secret_file;  // The same.
  Duration timeout = std::chrono::seconds(10);  // Of one transfer, and of one answer of a peer.
  uint64_t fault_seed = 0;
  uint32_t fault_drop_ppm = 0;
  uint32_t fault_delay_ppm = 0;
  uint32_t fault_cut_ppm = 0;
  uint32_t fault_flip_ppm = 0;

  // The side that asks the engine to move bytes, and so may use private memory.
  bool initiates() const noexcept { return (role == Role::kDecode) == (mode == Mode::kRead); }
  // Without shm the pools are as private as a host's own memory.
  bool maps() const noexcept;
  // Those of the user's environment and configuration file, but for what the run decides.
  Result<EngineOptions> engine_options() const;
};

nlohmann::json to_json(const RankConfig& config);
// Errors: corrupt (frame) names what is missing or of the wrong type.
Result<RankConfig> rank_config_from(const nlohmann::json& json);

}  // namespace stagelink::cli::replay
