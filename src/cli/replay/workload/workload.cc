#include "cli/replay/workload/workload.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "base/random.h"

namespace stagelink::cli::replay {
namespace {

// Ids of the built-in workload, in the manner of a trace: counted up, never reused for others.
class Prompts {
 public:
  explicit Prompts(uint64_t seed) : random_(seed) {}

  // A prompt that starts with `prefix` and adds `tokens` of its own.
  TraceRequest ask(const std::vector<uint64_t>& prefix, uint32_t tokens) {
    TraceRequest request;
    request.timestamp_ms = now_ms_ += random_.below(400);
    request.hash_ids = prefix;
    request.input_tokens = static_cast<uint32_t>(prefix.size()) * kTokensPerId + tokens;
    const uint32_t fresh = (tokens + kTokensPerId - 1) / kTokensPerId;
    for (uint32_t i = 0; i < fresh; ++i) request.hash_ids.push_back(next_id_++);
    request.output_tokens = static_cast<uint32_t>(20 + random_.below(400));
    return request;
  }
  uint32_t tokens(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(random_.below(high - low));
  }
  size_t pick(size_t count) { return random_.below(count); }

 private:
  SplitMix64 random_;
  uint64_t next_id_ = 0;
  uint64_t now_ms_ = 0;
};

// The ids that a later turn can share: the last one may be partly filled and changes.
std::vector<uint64_t> whole_ids(const TraceRequest& request) {
  auto ids = request.hash_ids;
  ids.resize(request.input_tokens / kTokensPerId);
  return ids;
}

}  // namespace

size_t BlockKeyHash::operator()(const BlockKey& key) const noexcept {
  return SplitMix64::mix(key.id * kTokensPerId + key.first_token);
}

std::vector<BlockKey> block_keys(std::span<const uint64_t> ids, uint32_t tokens,
                                 uint32_t block_tokens) {
  std::vector<BlockKey> keys;
  keys.reserve(tokens / block_tokens + 1);
  for (const uint64_t id : ids) {
    const uint32_t here = std::min(tokens, kTokensPerId);
    for (uint32_t at = 0; at < here; at += block_tokens) keys.push_back({id, at});
    tokens -= here;
  }
  return keys;
}

Result<Workload> load_trace(const std::string& path, uint32_t limit) {
  SL_ASSIGN(auto reader, TraceReader::open(path));
  Workload workload{path, {}};
  while (limit == 0 || workload.requests.size() < limit) {
    SL_ASSIGN(auto request, reader.next());
    if (!request) break;
    workload.requests.push_back(std::move(*request));
  }
  if (workload.requests.empty()) {
    return Status(Reason::kNotFound, fmt::format("the trace {} holds no request", path));
  }
  return workload;
}

Workload built_in_workload(uint64_t seed) {
  constexpr size_t kSystemPrompts = 3;
  constexpr size_t kChats = 12;
  constexpr size_t kRequests = 96;
  constexpr size_t kLongestChat = 16;  // In ids; then a new chat takes its place.
  Prompts prompts(seed);
  std::vector<std::vector<uint64_t>> system;
  for (size_t i = 0; i < kSystemPrompts; ++i) {
    system.push_back(prompts.ask({}, kTokensPerId * prompts.tokens(1, 4)).hash_ids);
  }
  std::vector<std::vector<uint64_t>> chats;
  for (size_t i = 0; i < kChats; ++i) chats.push_back(system[i % kSystemPrompts]);

  Workload workload{"built-in", {}};
  while (workload.requests.size() < kRequests) {
    auto& chat = chats[prompts.pick(kChats)];
    if (prompts.pick(12) == 0) {  // Somebody pastes a document.
      workload.requests.push_back(prompts.ask(chat, prompts.tokens(8000, 24000)));
      continue;
    }
    workload.requests.push_back(prompts.ask(chat, prompts.tokens(150, 4000)));
    chat = whole_ids(workload.requests.back());
    if (chat.size() > kLongestChat) chat = system[prompts.pick(kSystemPrompts)];
  }
  return workload;
}

WorkloadSize measure(const Workload& workload, uint32_t block_tokens) {
  WorkloadSize size;
  std::unordered_set<BlockKey, BlockKeyHash> seen;
  for (uint32_t i = 0; i < workload.requests.size(); ++i) {
    const TraceRequest& request = workload.requests[i];
    const auto keys = block_keys(request.hash_ids, request.input_tokens, block_tokens);
    seen.insert(keys.begin(), keys.end());
    size.blocks += keys.size();
    if (keys.size() > size.largest) {
      size.largest = static_cast<uint32_t>(keys.size());
      size.largest_request = i;
    }
  }
  size.distinct_blocks = seen.size();
  return size;
}

}  // namespace stagelink::cli::replay
