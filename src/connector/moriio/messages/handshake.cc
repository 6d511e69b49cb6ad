#include "connector/moriio/messages/handshake.h"

#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/moriio/messages/extra_fields.h"
#include "connector/moriio/messages/packed_map.h"

namespace stagelink::moriio {
namespace {

constexpr size_t kMaxKeys = 64;
constexpr size_t kMaxNameBytes = 1024;
constexpr uint64_t kMaxBytes = uint64_t{1} << 48;

}  // namespace

Result<HandshakeRequest> decode_handshake_request(std::span<const std::byte> frame) {
  const std::string_view text(reinterpret_cast<const char*>(frame.data()), frame.size());
  if (text == kGetMetadata) return HandshakeRequest::kGetMetadata;
  if (text == kPopDoneRecv) return HandshakeRequest::kPopDoneRecv;
  return Status(Reason::kFrame,
                fmt::format("handshake: a request of {} bytes that is none", frame.size()));
}

Result<AgentMetadata> decode_agent_metadata(std::span<const std::byte> frame) {
  SL_ASSIGN(MapReader map,
            MapReader::open("agent metadata", frame, {kMaxHandshakeBytes, kMaxKeys}));
  AgentMetadata out;
  out.engine_id = map.text("engine_id", kMaxIdBytes);
  out.agent_metadata = map.bytes("agent_metadata", kMaxDescBytes);
  out.kv_caches_base_addr = map.addresses("kv_caches_base_addr", kMaxLayers);
  out.num_blocks = map.integer("num_blocks", {0, kMaxBlockId});
  out.block_len = map.integer("block_len", {0, kMaxBytes});
  out.attn_backend_name = map.text("attn_backend_name", kMaxNameBytes);
  out.extras = read_extras(map);
  if (out.extras.version.has_value()) {
    if (map.has("compat"))
      out.compat = map.texts_by_name("compat", kMaxCompatFields, kMaxNameBytes);
    if (map.has("layer_num_blocks")) {
      out.layer_num_blocks = map.integers_by_name("layer_num_blocks", kMaxLayers);
    }
  }
  SL_TRY(map.finish());
  return out;
}

Result<Bytes> encode(const AgentMetadata& metadata) {
  MapWriter map;
  map.text("engine_id", metadata.engine_id);
  map.bytes("agent_metadata", metadata.agent_metadata);
  map.addresses("kv_caches_base_addr", metadata.kv_caches_base_addr);
  map.integer("num_blocks", metadata.num_blocks);
  map.integer("block_len", metadata.block_len);
  map.text("attn_backend_name", metadata.attn_backend_name);
  MessageExtras extras = metadata.extras;
  const bool more = !metadata.compat.empty() || !metadata.layer_num_blocks.empty();
  if (more && !extras.version.has_value()) extras.version = kMessageVersion;
  write_extras(map, extras);
  if (!metadata.compat.empty()) map.texts_by_name("compat", metadata.compat);
  if (!metadata.layer_num_blocks.empty()) {
    map.integers_by_name("layer_num_blocks", metadata.layer_num_blocks);
  }
  Bytes out = map.take();
  SL_TRY(decode_agent_metadata(out).status());
  return out;
}

Result<LayerMap> decode_layer_map(std::span<const std::byte> frame) {
  SL_ASSIGN(MapReader map, MapReader::open("layer map", frame, {kMaxHandshakeBytes, kMaxLayers}));
  LayerMap out;
  for (std::string& name : map.keys()) {
    if (name.empty() || name.size() > kMaxNameBytes || !is_plain_text(name)) {
      map.reject(name, "is no name of a layer");
    }
    auto regions = map.byte_lists(name, kMaxRegionsPerLayer, kMaxDescBytes);
    if (map.ok() && regions.empty()) map.reject(name, "has no memory descriptor");
    SL_TRY(map.finish());
    out.push_back({std::move(name), std::move(regions)});
  }
  return out;
}

Result<Bytes> encode(const LayerMap& layers) {
  MapWriter map;
  for (const LayerRegions& layer : layers) map.byte_lists(layer.layer, layer.regions);
  Bytes out = map.take();
  SL_TRY(decode_layer_map(out).status());
  return out;
}

}  // namespace stagelink::moriio
