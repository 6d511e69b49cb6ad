#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "stagelink/engine_options.h"

namespace stagelink::cli::replay {

// One batch that succeeded.
struct TransferSample {
  uint32_t request = 0;
  uint64_t bytes = 0;
  int64_t start_ns = 0;  // On the monotonic clock, which all processes share.
  int64_t ns = 0;        // From submission to the end of the wait.
};

struct RequestRecord {
  enum class State : uint8_t { kOpen, kDone, kLost };
  State state = State::kOpen;
  uint64_t blocks = 0;      // Moved.
  uint64_t hit_blocks = 0;  // Held already.
  uint64_t verified_blocks = 0;
  uint64_t wrong_blocks = 0;
  int64_t limit_ns = 0;  // The limit for its batch; 0 if not measured.
  int64_t total_ns = 0;  // From the request to its last checked byte.
};

// All that was seen of a run.
//
// Thread-safety: a value.
struct RunRecord {
  std::vector<RequestRecord> requests;
  std::vector<TransferSample> transfers;
  std::map<std::string, uint64_t> errors;  // By cause; those that were overcome too.
  std::vector<std::string> notes;          // For people: what was overcome.
  std::vector<std::string> failures;       // For people: what was not.
  uint64_t evicted_blocks = 0;
  uint32_t restarts = 0;
  bool interrupted = false;
  Duration wall = Duration::zero();  // From the first request to the last answer.

  // Takes an event of a rank: transfer, error, wrong, done or lost. False: it is none of these.
  // Throws nlohmann's exceptions if the event is malformed.
  bool take(const nlohmann::json& event);
  uint32_t count(RequestRecord::State state) const;
};

}  // namespace stagelink::cli::replay
