#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connector/moriio/messages/message_fields.h"
#include "stagelink/result.h"

// What goes over a handshake port: the client sends one frame, kGetMetadata; the server
// answers with two messages, each an empty frame and a payload: AgentMetadata, then LayerMap.
namespace stagelink::moriio {

enum class HandshakeRequest : uint8_t { kGetMetadata, kPopDoneRecv };
inline constexpr std::string_view kGetMetadata = "get_meta_msg";
// Of former times: followed by a request id that nobody looks at. Answered by nothing.
inline constexpr std::string_view kPopDoneRecv = "pop_done_recv";

// Errors: corrupt (frame) for any other frame, which must not end a listener.
Result<HandshakeRequest> decode_handshake_request(std::span<const std::byte> frame);

inline constexpr size_t kMaxLayers = 16384;
inline constexpr size_t kMaxRegionsPerLayer = 64;
inline constexpr size_t kMaxDescBytes = 16 << 10;  // Of a packed engine or memory descriptor.
inline constexpr size_t kMaxCompatFields = 256;

// One rank's engine and cache.
struct AgentMetadata {
  std::string engine_id;                      // "IP:HANDSHAKE_PORT"
  Bytes agent_metadata;                       // Packed EngineDesc.
  std::vector<uint64_t> kv_caches_base_addr;  // One for each layer, in the order of the layer map.
  uint64_t num_blocks = 0;
  uint64_t block_len = 0;  // Bytes of one block of one layer, of K or V where they lie apart.
  std::string attn_backend_name;

  // Extra keys, absent in a peer of 0.32. `extras` as in notifications; `compat` is the description
  // that compat_hash is made from (block_layout/compatibility.h), so that a mismatch can be named.
  MessageExtras extras;
  std::map<std::string, std::string> compat;
  // Blocks of each layer, where they are not num_blocks throughout (mamba slots): by layer name.
  std::map<std::string, uint64_t> layer_num_blocks;
  friend bool operator==(const AgentMetadata&, const AgentMetadata&) = default;
};

Result<AgentMetadata> decode_agent_metadata(std::span<const std::byte> frame);
Result<Bytes> encode(const AgentMetadata& metadata);

// The packed memory descriptors of one layer: one, or two (conv, ssm) of a layer with mamba state.
struct LayerRegions {
  std::string layer;
  std::vector<Bytes> regions;
  friend bool operator==(const LayerRegions&, const LayerRegions&) = default;
};
using LayerMap = std::vector<LayerRegions>;  // In registration order; names are unique.

Result<LayerMap> decode_layer_map(std::span<const std::byte> frame);
Result<Bytes> encode(const LayerMap& layers);

}  // namespace stagelink::moriio
