#include "connector/omni_config/config_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "connector/omni_config/connector_names.h"
#include "connector/omni_config/kv_maps.h"
#include "connector/omni_config/typed_value.h"

namespace stagelink::omni {
namespace {

using OrderedJson = nlohmann::ordered_json;
using config::ConfigNode;

OrderedJson extra_json(const ConfigNode& extra) { return OrderedJson::parse(to_json(extra)); }

OrderedJson spec_json(const ConnectorSpec& spec) {
  return {{"name", spec.name}, {"extra", extra_json(spec.extra)}};
}

OrderedJson edge_json(const Edge& edge) {
  OrderedJson json = spec_json(edge.connector);
  json["from"] = edge.from;
  json["to"] = edge.to;
  json["reference"] = edge.reference;
  json["automatic"] = edge.automatic;
  json["window_size"] = edge.bounds.window_size;
  json["max_inflight"] = edge.bounds.max_inflight;
  if (is_store_connector(edge.connector.name)) json["namespace"] = store_namespace(edge.connector);
  return json;
}

OrderedJson port_json(const OmniTransferConfig& config, const PortUse& use) {
  const Edge& edge = config.edges[use.edge];
  return {{"port", use.port},
          {"edge", fmt::format("{}->{}", edge.from, edge.to)},
          {"purpose", purpose_name(use.place.purpose)},
          {"from_stage", use.place.from_stage},
          {"replica", use.place.replica},
          {"rank", use.place.local_rank}};
}

OrderedJson kv_map_json(const OmniTransferConfig& config, const KvMap& map) {
  const Edge& edge = config.edges[map.edge];
  const kv::TpTopology& topology = map.map.topology();
  return {{"edge", fmt::format("{}->{}", edge.from, edge.to)},
          {"from_tp", topology.from_tp},
          {"to_tp", topology.to_tp},
          {"kv_heads", topology.kv_heads},
          {"mla", topology.mla},
          {"fan", map.map.fan()},
          {"ranks", map.map.lines()}};
}

// Texts of Python may hold what is no UTF-8; it is replaced.
std::string dumped(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Status not_ours(std::string_view what) {
  return Status(Reason::kInvalidArgument, fmt::format("not a resolved configuration: {}", what));
}

Result<ConnectorSpec> spec_of(const ConfigNode& map) {
  const config::ConfigEntry* name = map.find("name");
  const config::ConfigEntry* extra = map.find("extra");
  if (name == nullptr || name->value.kind != ConfigNode::Kind::kScalar) return not_ours("no name");
  if (extra == nullptr || extra->value.kind != ConfigNode::Kind::kMap) return not_ours("no extra");
  return ConnectorSpec{name->value.text, extra->value};
}

Result<ConfigNode> map_of(std::string_view json) {
  SL_ASSIGN(ConfigNode root, config::parse_config(json, config::ConfigSyntax::kJson, "config"));
  if (root.kind != ConfigNode::Kind::kMap) return not_ours("no map");
  return root;
}

}  // namespace

Result<std::string> transfer_config_json(const OmniTransferConfig& config) {
  OrderedJson json = {{"enabled", config.enabled}};
  json["stages"] = OrderedJson::array();
  for (const Stage& stage : config.stages) {
    json["stages"].push_back({{"id", stage.id},
                              {"replicas", stage.replicas},
                              {"tensor_parallel", stage.tensor_parallel},
                              {"sends_kv", stage.sends_kv}});
  }
  json["edges"] = OrderedJson::array();
  for (const Edge& edge : config.edges) json["edges"].push_back(edge_json(edge));
  SL_ASSIGN(const std::vector<PortUse> ports, port_plan(config));
  json["ports"] = OrderedJson::array();
  for (const PortUse& use : ports) json["ports"].push_back(port_json(config, use));
  SL_ASSIGN(const std::vector<KvMap> maps, kv_maps(config));
  json["kv"] = OrderedJson::array();
  for (const KvMap& map : maps) json["kv"].push_back(kv_map_json(config, map));
  return dumped(json);
}

Result<OmniTransferConfig> transfer_config_of_json(std::string_view json) {
  SL_ASSIGN(const ConfigNode root, map_of(json));
  OmniTransferConfig config;
  const config::ConfigEntry* edges = root.find("edges");
  if (edges == nullptr) return not_ours("no edges");
  for (const ConfigNode& node : edges->value.items) {
    const config::ConfigEntry* from = node.find("from");
    const config::ConfigEntry* to = node.find("to");
    if (from == nullptr || to == nullptr) return not_ours("an edge without ends");
    Edge edge;
    edge.from = from->value.text;
    edge.to = to->value.text;
    SL_ASSIGN(edge.connector, spec_of(node));
    for (const auto& [name, field] : {std::pair("window_size", &EdgeBounds::window_size),
                                      std::pair("max_inflight", &EdgeBounds::max_inflight)}) {
      const config::ConfigEntry* bound = node.find(name);
      if (bound == nullptr) continue;
      const TypedValue value = typed_value(bound->value);
      if (!std::holds_alternative<int64_t>(value)) return not_ours(name);
      edge.bounds.*field = std::get<int64_t>(value);
    }
    config.edges.push_back(std::move(edge));
  }
  return config;
}

Result<std::string> stage_json(const OmniTransferConfig& config, std::string_view stage) {
  OrderedJson json;
  json["connectors"] = OrderedJson::object();
  for (const StageConnector& one : stage_connectors(config, stage)) {
    json["connectors"][one.key] = {{"spec", spec_json(one.connector)}};
  }
  SL_ASSIGN(const std::optional<ConnectorSpec> spec, stage_connector(config, stage));
  json["connector"] = spec.has_value() ? spec_json(*spec) : OrderedJson::object();
  const std::optional<KvConnector> kv = kv_connector(config, stage);
  json["kv"] = {nullptr, nullptr, nullptr};
  if (kv.has_value()) {
    OrderedJson map = {{"type", kv->connector.name}};
    const OrderedJson extra = extra_json(kv->connector.extra);
    for (const auto& [key, value] : extra.items()) {
      if (key != "type") map[key] = value;  // It names the connector.
    }
    json["kv"] = {std::move(map), kv->from, kv->to};
  }
  return dumped(json);
}

Result<std::string> resolve_connector_json(std::string_view json, const WorkerPlace& place) {
  SL_ASSIGN(const ConfigNode root, map_of(json));
  SL_ASSIGN(ConnectorSpec spec, spec_of(root));
  SL_ASSIGN(const ConnectorSpec resolved, resolve_connector(std::move(spec), place));
  return dumped(spec_json(resolved));
}

}  // namespace stagelink::omni
