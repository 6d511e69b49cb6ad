#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/replay/workload/trace.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

// What a block of the cache holds: block_tokens tokens of one prefix id, from first_token on.
struct BlockKey {
  uint64_t id = 0;
  uint32_t first_token = 0;
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const noexcept;
};

// The blocks that a prompt of `tokens` tokens with these ids consists of, in order.
std::vector<BlockKey> block_keys(std::span<const uint64_t> ids, uint32_t tokens,
                                 uint32_t block_tokens);

// The requests to replay, in order of arrival.
struct Workload {
  std::string source;  // A path, or "built-in".
  std::vector<TraceRequest> requests;
};

// The first `limit` requests of the file (0: all). Errors: those of TraceReader; not_found if there
// is none.
Result<Workload> load_trace(const std::string& path, uint32_t limit);

// A small mix of chats with growing prompts over a few shared system prompts and of single long
// prompts. The same on every machine.
Workload built_in_workload(uint64_t seed);

struct WorkloadSize {
  uint64_t blocks = 0;           // Of all requests, if nothing were held.
  uint64_t distinct_blocks = 0;  // Every one moves at least once.
  uint32_t largest = 0;          // Of one request.
  uint32_t largest_request = 0;  // Its place in the workload.
};
WorkloadSize measure(const Workload& workload, uint32_t block_tokens);

}  // namespace stagelink::cli::replay
