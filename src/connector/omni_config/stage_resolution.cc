#include "connector/omni_config/stage_resolution.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/omni_config/connector_names.h"
#include "connector/omni_config/typed_value.h"

namespace stagelink::omni {
namespace {

using config::ConfigNode;

constexpr std::string_view kNixl = "NixlConnector";

int64_t stage_number(std::string_view id) {
  const auto number = parse_integer(id);
  return number.ok() ? *number : -1;
}

void set_default(ConfigNode& map, std::string_view key, std::string_view text) {
  if (map.find(key) == nullptr) set_key(map, key, text_node(text));
}

void set_ends(ConfigNode& extra, const Edge& edge) {
  set_key(extra, "from_stage", integer_node(stage_number(edge.from)));
  set_key(extra, "to_stage", integer_node(stage_number(edge.to)));
}

ConnectorSpec with_bounds(const Edge& edge) {
  ConnectorSpec spec = edge.connector;
  if (!is_store_connector(spec.name)) return spec;
  const EdgeBounds free;
  if (edge.bounds.window_size != free.window_size) {
    set_key(spec.extra, "window_size", integer_node(edge.bounds.window_size));
  }
  if (edge.bounds.max_inflight != free.max_inflight) {
    set_key(spec.extra, "max_inflight", integer_node(edge.bounds.max_inflight));
  }
  return spec;
}

ConnectorSpec with_role(const Edge& edge, std::string_view role) {
  ConnectorSpec spec = with_bounds(edge);
  set_default(spec.extra, "role", role);
  return spec;
}

void erase_key(ConfigNode& map, std::string_view key) {
  std::erase_if(map.entries, [key](const config::ConfigEntry& e) { return e.key.text == key; });
}

// The edge whose other end has the smallest id; null: there is none.
const Edge* smallest(const OmniTransferConfig& config, std::string Edge::*own,
                     std::string Edge::*other, std::string_view stage) {
  const Edge* best = nullptr;
  for (const Edge& edge : config.edges) {
    if (edge.*own != stage) continue;
    if (best == nullptr || stage_number(edge.*other) < stage_number(best->*other)) best = &edge;
  }
  return best;
}

// The port of a worker; 0: whatever is free.
Result<int64_t> worker_port(const ConfigNode& extra, const WorkerPlace& place) {
  SL_ASSIGN(const int64_t base, base_port(extra));
  if (base == 0) return int64_t{0};
  int64_t from_stage = place.stage_id;
  if (const config::ConfigEntry* from = extra.find("from_stage")) {
    SL_ASSIGN(from_stage, parse_integer(from->value.text));
  }
  SL_ASSIGN(const uint16_t port,
            connector_port(base, {place.purpose, from_stage, place.local_rank, place.replica}));
  return int64_t{port};
}

std::string text_of(const ConfigNode& map, std::string_view key, std::string_view otherwise) {
  const config::ConfigEntry* entry = map.find(key);
  return entry == nullptr ? std::string(otherwise) : entry->value.text;
}

// A receiver dials the sender of its edge and, but for NIXL in the middle, listens on nothing.
Status resolve_receiver(ConnectorSpec& spec, const WorkerPlace& place) {
  ConfigNode& extra = spec.extra;
  set_default(extra, "sender_host", text_of(extra, "host", "127.0.0.1"));
  if (extra.find("sender_zmq_port") == nullptr) {
    SL_ASSIGN(const int64_t port, worker_port(extra, place));
    if (port != 0) set_key(extra, "sender_zmq_port", integer_node(port));
  }
  erase_key(extra, "zmq_port");
  const config::ConfigEntry* outgoing = extra.find("outgoing");
  if (spec.name != kNixl || outgoing == nullptr || outgoing->value.kind != ConfigNode::Kind::kMap)
    return {};
  const ConfigNode other = outgoing->value;
  SL_ASSIGN(const int64_t port, worker_port(other, place));
  set_key(extra, "zmq_port", port == 0 ? text_node("auto") : integer_node(port));
  set_key(extra, "host", text_node(text_of(other, "host", "auto")));
  return {};
}

}  // namespace

const Edge* OmniTransferConfig::find_edge(std::string_view from,
                                          std::string_view to) const noexcept {
  const auto at = std::ranges::find_if(
      edges, [&](const Edge& edge) { return edge.from == from && edge.to == to; });
  return at == edges.end() ? nullptr : &*at;
}

std::vector<StageConnector> stage_connectors(const OmniTransferConfig& config,
                                             std::string_view stage) {
  std::vector<StageConnector> out;
  for (const Edge& edge : config.edges) {
    const bool in = edge.to == stage;
    if (!in && (edge.from != stage || stage != "0")) continue;
    ConnectorSpec spec = with_role(edge, in ? "receiver" : "sender");
    set_ends(spec.extra, edge);
    out.push_back({in ? "from_stage_" + edge.from : "to_stage_" + edge.to, std::move(spec)});
  }
  return out;
}

Result<std::optional<ConnectorSpec>> stage_connector(const OmniTransferConfig& config,
                                                     std::string_view stage) {
  std::vector<StageConnector> all = stage_connectors(config, stage);
  if (!all.empty()) {
    ConnectorSpec spec = std::move(all.front().connector);
    for (const Edge& edge : config.edges) {
      if (spec.name != kNixl || edge.from != stage) continue;
      if (edge.connector.name != kNixl) {
        return Status(
            Reason::kInvalidArgument,
            fmt::format("{}: A NIXL middle stage requires NIXL on its outgoing edge; edge "
                        "{}->{} has {}",
                        edge.place, edge.from, edge.to, edge.connector.name));
      }
      ConfigNode outgoing = edge.connector.extra;
      set_ends(outgoing, edge);
      set_key(spec.extra, "outgoing", std::move(outgoing));
      break;
    }
    if (!is_transfer_engine(spec.name)) {
      erase_key(spec.extra, "from_stage");
      erase_key(spec.extra, "to_stage");
    }
    return std::optional(std::move(spec));
  }
  for (const Edge& edge : config.edges) {
    if (edge.from != stage) continue;
    ConnectorSpec spec = with_role(edge, "sender");
    if (is_transfer_engine(spec.name)) set_ends(spec.extra, edge);
    return std::optional(std::move(spec));
  }
  return std::optional<ConnectorSpec>();
}

std::optional<KvConnector> kv_connector(const OmniTransferConfig& config, std::string_view stage) {
  const Edge* edge = smallest(config, &Edge::from, &Edge::to, stage);
  const bool sends = edge != nullptr;
  if (!sends) edge = smallest(config, &Edge::to, &Edge::from, stage);
  if (edge == nullptr) return std::nullopt;
  return KvConnector{with_role(*edge, sends ? "sender" : "receiver"), edge->from, edge->to};
}

Result<ConnectorSpec> resolve_connector(ConnectorSpec spec, const WorkerPlace& place) {
  set_key(spec.extra, "stage_id", integer_node(place.stage_id));
  if (place.role != Role::kNone) {
    set_key(spec.extra, "role", text_node(place.role == Role::kSender ? "sender" : "receiver"));
  }
  if (!is_transfer_engine(spec.name)) return spec;
  if (place.role == Role::kReceiver) {
    SL_TRY(resolve_receiver(spec, place));
    return spec;
  }
  SL_ASSIGN(const int64_t port, worker_port(spec.extra, place));
  if (port != 0) set_key(spec.extra, "zmq_port", integer_node(port));
  return spec;
}

}  // namespace stagelink::omni
