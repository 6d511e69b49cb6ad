#include "connector/omni_config/transfer_config.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/omni_config/connector_names.h"
#include "connector/omni_config/kv_maps.h"
#include "connector/omni_config/ports.h"
#include "connector/omni_config/typed_value.h"
#include "connector/pull/options.h"
#include "connector/store/options.h"

namespace stagelink::omni {
namespace {

using config::ConfigEntry;
using config::ConfigNode;
using Kind = ConfigNode::Kind;
using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 22> kRootKeys = {"runtime",
                                                        "stage_args",
                                                        "connectors",
                                                        "edges",
                                                        "stages",
                                                        "platforms",
                                                        "pipeline",
                                                        "async_chunk",
                                                        "session_mode",
                                                        "model_runner",
                                                        "active_stream_window",
                                                        "duplex_session",
                                                        "trust_remote_code",
                                                        "distributed_executor_backend",
                                                        "dtype",
                                                        "quantization",
                                                        "enable_prefix_caching",
                                                        "enable_chunked_prefill",
                                                        "data_parallel_size",
                                                        "pipeline_parallel_size",
                                                        "custom_voice_dir",
                                                        "forced_aligner"};
constexpr std::array<std::string_view, 4> kRuntimeKeys = {"enabled", "defaults", "connectors",
                                                          "edges"};
constexpr std::array<std::string_view, 2> kBoundKeys = {"window_size", "max_inflight"};
constexpr std::array<std::string_view, 4> kEdgeKeys = {"from", "to", "window_size", "max_inflight"};
constexpr std::array<std::string_view, 2> kConnectorKeys = {"name", "extra"};
// Of a stage, whose other keys belong to the host and are left alone, unless they are nearly these.
constexpr std::array<std::string_view, 4> kStageKeys = {"stage_id", "input_connectors",
                                                        "output_connectors", "engine_input_source"};
constexpr std::array<std::string_view, 6> kNotInStage = {
    "connectors", "edges", "window_size", "max_inflight", "input_connector", "output_connector"};

constexpr std::string_view kAutomatic = "SharedMemoryConnector";

std::string in_quotes(std::string_view text) {
  return fmt::format("`{}`", escape_control(text.substr(0, 80)));
}

// Reads a tree into an OmniTransferConfig.
class TransferReader {
 public:
  explicit TransferReader(const ConfigTree& tree) : tree_(tree) {}

  Result<OmniTransferConfig> read() {
    const ConfigNode& root = tree_.root;
    for (const ConfigEntry& entry : root.entries) SL_TRY(known(entry.key, kRootKeys, "a pipeline"));
    SL_TRY(read_runtime());
    SL_TRY(pick("connectors", Kind::kMap, connectors_));
    SL_TRY(pick("edges", Kind::kList, listed_));
    SL_TRY(read_connectors());
    SL_TRY(read_stages());
    SL_TRY(read_stage_edges());
    SL_TRY(read_listed_edges());
    SL_TRY(read_input_sources());
    if (!config_.enabled) config_.edges.clear();
    return std::move(config_);
  }

 private:
  // Names every key that is not one of `names`.
  Status known(const ConfigNode& key, Names names, std::string_view what) const {
    if (std::ranges::find(names, key.text) != names.end()) return {};
    const std::string_view near = nearest_name(key.text, names);
    return tree_.failure(key,
                         near.empty()
                             ? fmt::format("unknown key {} of {}", in_quotes(key.text), what)
                             : fmt::format("unknown key {} of {}; did you mean `{}`?",
                                           in_quotes(key.text), what, near),
                         Reason::kUnknownKey);
  }

  Status must_be(const ConfigEntry& entry, Kind kind) const {
    if (entry.value.kind == kind) return {};
    if (entry.value.is_null()) {
      return tree_.failure(entry.key,
                           fmt::format("the section `{}` is null; fill it or leave it out",
                                       escape_control(entry.key.text)));
    }
    constexpr std::array<std::string_view, 3> kKinds = {"single value", "list", "map"};
    return tree_.failure(
        entry.value, fmt::format("`{}` must be a {}, found a {}", escape_control(entry.key.text),
                                 kKinds[static_cast<size_t>(kind)],
                                 kKinds[static_cast<size_t>(entry.value.kind)]));
  }

  Result<int64_t> integer(const ConfigNode& node, std::string_view name, int64_t min,
                          int64_t max) const {
    const auto refuse = [&] {
      return tree_.failure(node, fmt::format("{}: expected an integer, {} to {}, found {}", name,
                                             min, max, in_quotes(node.text)));
    };
    if (node.kind != Kind::kScalar) return refuse();
    const auto value = parse_integer(node.text);
    if (!value.ok() || *value < min || *value > max) return refuse();
    return *value;
  }

  Result<bool> boolean(const ConfigNode& node, std::string_view name) const {
    const auto value = parse_bool(node.text);
    if (node.kind != Kind::kScalar || !value.ok()) {
      return tree_.failure(
          node, fmt::format("{}: expected true or false, found {}", name, in_quotes(node.text)));
    }
    return *value;
  }

  Status read_runtime() {
    const ConfigEntry* runtime = tree_.root.find("runtime");
    if (runtime == nullptr) return {};
    SL_TRY(must_be(*runtime, Kind::kMap));
    runtime_ = &runtime->value;
    for (const ConfigEntry& entry : runtime_->entries) {
      SL_TRY(known(entry.key, kRuntimeKeys, "runtime"));
    }
    if (const ConfigEntry* enabled = runtime_->find("enabled")) {
      SL_ASSIGN(config_.enabled, boolean(enabled->value, "runtime.enabled"));
    }
    const ConfigEntry* defaults = runtime_->find("defaults");
    if (defaults == nullptr) return {};
    SL_TRY(must_be(*defaults, Kind::kMap));
    for (const ConfigEntry& entry : defaults->value.entries) {
      SL_TRY(known(entry.key, kBoundKeys, "runtime.defaults"));
    }
    return read_bounds(defaults->value, defaults_);
  }

  Status read_bounds(const ConfigNode& map, EdgeBounds& bounds) const {
    SL_TRY(read_bound(map, "window_size", bounds.window_size));
    return read_bound(map, "max_inflight", bounds.max_inflight);
  }

  Status read_bound(const ConfigNode& map, std::string_view name, int64_t& out) const {
    const ConfigEntry* entry = map.find(name);
    if (entry == nullptr) return {};
    SL_ASSIGN(out, integer(entry->value, name, -1, 1'000'000));
    if (out != 0) return {};
    return tree_.failure(
        entry->value, fmt::format("{}: 0 would let nothing through; -1 is without a bound", name));
  }

  // A section that stands at the top, or under `runtime` as in former times.
  Status pick(std::string_view name, Kind kind, const ConfigNode*& out) const {
    const ConfigEntry* top = tree_.root.find(name);
    const ConfigEntry* former = runtime_ == nullptr ? nullptr : runtime_->find(name);
    if (top != nullptr && former != nullptr) {
      return tree_.failure(former->key,
                           fmt::format("`{}` stands under `runtime` and at the top level "
                                       "({}); keep one",
                                       name, tree_.place(top->key)));
    }
    const ConfigEntry* entry = top != nullptr ? top : former;
    if (entry == nullptr) return {};
    SL_TRY(must_be(*entry, kind));
    out = &entry->value;
    return {};
  }

  Status read_connectors() {
    if (connectors_ == nullptr) return {};
    for (const ConfigEntry& entry : connectors_->entries) {
      SL_TRY(must_be(entry, Kind::kMap));
      SL_ASSIGN(ConnectorSpec spec, connector(entry));
      named_.emplace(entry.key.text, std::move(spec));
    }
    return {};
  }

  Result<ConnectorSpec> connector(const ConfigEntry& entry) const {
    const ConfigNode& map = entry.value;
    ConnectorSpec spec;
    spec.extra.kind = Kind::kMap;
    for (const ConfigEntry& field : map.entries) {
      if (nearest_name(field.key.text, kConnectorKeys).empty()) {
        return tree_.failure(
            field.key,
            fmt::format("{} stands beside `name`; options of a connector stand under "
                        "`extra`",
                        in_quotes(field.key.text)),
            Reason::kUnknownKey);
      }
      SL_TRY(known(field.key, kConnectorKeys, "a connector"));
    }
    const ConfigEntry* name = map.find("name");
    if (name == nullptr || name->value.kind != Kind::kScalar || name->value.is_null()) {
      return tree_.failure(entry.key,
                           fmt::format("connector {} has no `name`", in_quotes(entry.key.text)));
    }
    spec.name = name->value.text;
    const std::string_view near = nearest_name(spec.name, connector_names());
    if (!near.empty() && near != spec.name) {
      return tree_.failure(name->value, fmt::format("unknown connector {}; did you mean `{}`?",
                                                    in_quotes(spec.name), near));
    }
    if (const ConfigEntry* extra = map.find("extra")) {
      SL_TRY(must_be(*extra, Kind::kMap));
      spec.extra = extra->value;
    }
    if (is_store_connector(spec.name)) {
      const auto place = [this](const ConfigNode& node) { return tree_.place(node); };
      const auto options = store_connector::load_connector_options(spec.extra, place);
      if (!options.ok()) return options.status();
    }
    if (is_pull_connector(spec.name)) {
      const auto place = [this](const ConfigNode& node) { return tree_.place(node); };
      const auto loaded = pull::load_pull_options(spec.extra, place);
      if (!loaded.ok()) return loaded.status();
    }
    return spec;
  }

  Status read_stages() {
    const ConfigEntry* now = tree_.root.find("stages");
    const ConfigEntry* former = tree_.root.find("stage_args");
    if (now != nullptr && former != nullptr) {
      return tree_.failure(
          former->key,
          fmt::format("`stage_args` stands beside `stages` ({}); keep one", tree_.place(now->key)));
    }
    const ConfigEntry* entry = now != nullptr ? now : former;
    if (entry == nullptr) return {};
    SL_TRY(must_be(*entry, Kind::kList));
    for (const ConfigNode& node : entry->value.items) {
      if (node.kind != Kind::kMap) return tree_.failure(node, "a stage must be a map");
      SL_TRY(check_stage_keys(node));
      SL_ASSIGN(Stage stage, read_stage(node));
      const auto [other, fresh] = stage_nodes_.emplace(stage.id, &node);
      if (!fresh) {
        return tree_.failure(node, fmt::format("stage {} is there already ({})", stage.id,
                                               tree_.place(*other->second)));
      }
      order_.push_back(&node);
      config_.stages.push_back(std::move(stage));
    }
    return {};
  }

  Status check_stage_keys(const ConfigNode& stage) const {
    for (const ConfigEntry& entry : stage.entries) {
      const std::string& name = entry.key.text;
      if (std::ranges::find(kStageKeys, name) != kStageKeys.end()) continue;
      if (std::ranges::find(kNotInStage, name) != kNotInStage.end() ||
          !nearest_name(name, kStageKeys).empty()) {
        return known(entry.key, kStageKeys, "a stage");
      }
    }
    return {};
  }

  // A value that stands in the stage itself or, as in former times, in one of its sections.
  const ConfigNode* stage_value(const ConfigNode& stage,
                                std::initializer_list<std::string_view> path) const {
    const ConfigNode* node = &stage;
    for (const std::string_view name : path) {
      const ConfigEntry* entry = node->find(name);
      if (entry == nullptr) return nullptr;
      node = &entry->value;
    }
    return node->is_null() ? nullptr : node;
  }

  Result<Stage> read_stage(const ConfigNode& node) const {
    const ConfigEntry* id = node.find("stage_id");
    if (id == nullptr) return tree_.failure(node, "a stage without `stage_id`");
    Stage stage;
    SL_ASSIGN(const int64_t number, integer(id->value, "stage_id", 0, 9999));
    stage.id = std::to_string(number);
    const ConfigNode* replicas = stage_value(node, {"runtime", "num_replicas"});
    if (replicas == nullptr) replicas = stage_value(node, {"num_replicas"});
    if (replicas != nullptr) {
      SL_ASSIGN(stage.replicas, integer(*replicas, "num_replicas", 0, 65'536));
    }
    for (const auto& path : {std::initializer_list<std::string_view>{"tensor_parallel_size"},
                             {"engine_args", "tensor_parallel_size"},
                             {"parallel_config", "tensor_parallel_size"},
                             {"engine_args", "parallel_config", "tensor_parallel_size"}}) {
      const ConfigNode* ranks = stage_value(node, path);
      if (ranks == nullptr) continue;
      SL_ASSIGN(stage.tensor_parallel, integer(*ranks, "tensor_parallel_size", 1, 65'536));
      stage.tensor_parallel_stated = true;
      break;
    }
    const ConfigNode* kv = stage_value(node, {"omni_kv_config"});
    if (kv == nullptr) kv = stage_value(node, {"engine_args", "omni_kv_config"});
    if (kv == nullptr) return stage;
    if (kv->kind != Kind::kMap) return tree_.failure(*kv, "omni_kv_config must be a map");
    stage.kv_config = *kv;
    if (const ConfigEntry* sends = kv->find("need_send_cache"); sends != nullptr) {
      SL_ASSIGN(stage.sends_kv, boolean(sends->value, "need_send_cache"));
    }
    return stage;
  }

  Status read_stage_edges() {
    for (const ConfigNode* node : order_) {
      const std::string id = std::to_string(*parse_integer(node->find("stage_id")->value.text));
      SL_TRY(read_ends(*node, id, "input_connectors", "from_stage_"));
      SL_TRY(read_ends(*node, id, "output_connectors", "to_stage_"));
    }
    return {};
  }

  // One direction of a stage: `from_stage_0: reference`.
  Status read_ends(const ConfigNode& stage, const std::string& id, std::string_view section,
                   std::string_view prefix) {
    const ConfigEntry* entry = stage.find(section);
    if (entry == nullptr) return {};
    SL_TRY(must_be(*entry, Kind::kMap));
    for (const ConfigEntry& end : entry->value.entries) {
      const std::string_view key = end.key.text;
      const auto number = parse_integer(key.substr(std::min(prefix.size(), key.size())));
      if (!key.starts_with(prefix) || !number.ok() || *number < 0) {
        return tree_.failure(end.key,
                             fmt::format("{}: a key is `{}` and the id of a stage, found {}",
                                         section, prefix, in_quotes(key)),
                             Reason::kUnknownKey);
      }
      const std::string other = std::to_string(*number);
      Edge edge;
      edge.from = prefix == "to_stage_" ? id : other;
      edge.to = prefix == "to_stage_" ? other : id;
      SL_TRY(check_ends(end.key, edge.from, edge.to));
      SL_TRY(fill_connector(end, edge));
      edge.place = tree_.place(end.key);
      SL_TRY(add_edge(end.key, std::move(edge)));
    }
    return {};
  }

  Status check_ends(const ConfigNode& at, const std::string& from, const std::string& to) const {
    for (const std::string& id : {from, to}) {
      if (stage_nodes_.contains(id)) continue;
      return tree_.failure(at, fmt::format("edge {}->{}: there is no stage {}", from, to, id));
    }
    if (from == to) return tree_.failure(at, fmt::format("edge {}->{} leads to itself", from, to));
    return {};
  }

  Status fill_connector(const ConfigEntry& end, Edge& edge) const {
    if (end.value.kind == Kind::kMap) {
      SL_ASSIGN(edge.connector, connector(end));
      return {};
    }
    if (end.value.kind != Kind::kScalar || end.value.is_null()) {
      return tree_.failure(end.value, fmt::format("{} needs the name of a connector, or a map with "
                                                  "`name` and `extra`",
                                                  in_quotes(end.key.text)));
    }
    const auto found = named_.find(end.value.text);
    if (found != named_.end()) {
      edge.reference = found->first;
      edge.connector = found->second;
      return {};
    }
    std::vector<std::string_view> names;
    for (const auto& [name, spec] : named_) names.push_back(name);
    const std::string_view near = nearest_name(end.value.text, names);
    return tree_.failure(
        end.value, fmt::format("Undefined connector reference: {}{}",
                               escape_control(end.value.text.substr(0, 80)),
                               near.empty() ? "" : fmt::format("; did you mean `{}`?", near)));
  }

  Edge* edge_of(std::string_view from, std::string_view to) {
    const auto at = std::ranges::find_if(
        config_.edges, [&](const Edge& edge) { return edge.from == from && edge.to == to; });
    return at == config_.edges.end() ? nullptr : &*at;
  }

  // Both ends of an edge may name its connector; they must mean the same.
  Status add_edge(const ConfigNode& at, Edge edge) {
    const Edge* other = edge_of(edge.from, edge.to);
    if (other == nullptr) {
      edge.bounds = defaults_;
      config_.edges.push_back(std::move(edge));
      return {};
    }
    if (other->connector.name != edge.connector.name) {
      return tree_.failure(
          at, fmt::format("Connector type mismatch for edge {}->{}: {} here, {} in {}", edge.from,
                          edge.to, in_quotes(edge.connector.name), in_quotes(other->connector.name),
                          other->place));
    }
    const std::string key = first_difference(other->connector.extra, edge.connector.extra);
    if (key.empty()) return {};
    return tree_.failure(
        at, fmt::format("edge {}->{}: `extra` differs from that of {} in the key {}", edge.from,
                        edge.to, other->place, in_quotes(key)));
  }

  Status read_listed_edges() {
    if (listed_ == nullptr) return {};
    std::map<std::pair<std::string, std::string>, const ConfigNode*> seen;
    for (const ConfigNode& node : listed_->items) {
      if (node.kind != Kind::kMap) return tree_.failure(node, "an edge must be a map");
      for (const ConfigEntry& entry : node.entries) SL_TRY(known(entry.key, kEdgeKeys, "an edge"));
      std::array<std::string, 2> ends;
      for (size_t end = 0; end < 2; ++end) {
        const ConfigEntry* entry = node.find(kEdgeKeys[end]);
        if (entry == nullptr) {
          return tree_.failure(node, fmt::format("an edge without `{}`", kEdgeKeys[end]));
        }
        SL_ASSIGN(const int64_t id, integer(entry->value, kEdgeKeys[end], 0, 9999));
        ends[end] = std::to_string(id);
      }
      SL_TRY(check_ends(node, ends[0], ends[1]));
      const auto [other, fresh] = seen.emplace(std::pair(ends[0], ends[1]), &node);
      if (!fresh) {
        return tree_.failure(node, fmt::format("edge {}->{} is listed already ({})", ends[0],
                                               ends[1], tree_.place(*other->second)));
      }
      add_automatic(node, ends[0], ends[1]);
      SL_TRY(read_bounds(node, edge_of(ends[0], ends[1])->bounds));
    }
    return {};
  }

  void add_automatic(const ConfigNode& at, const std::string& from, const std::string& to) {
    if (edge_of(from, to) != nullptr) return;
    Edge edge{from, to, {}, {}, true, defaults_, tree_.place(at)};
    edge.connector.name = kAutomatic;
    edge.connector.extra.kind = Kind::kMap;
    config_.edges.push_back(std::move(edge));
  }

  Status read_input_sources() {
    for (size_t at = 0; at < order_.size(); ++at) {
      const ConfigEntry* sources = order_[at]->find("engine_input_source");
      if (sources == nullptr) continue;
      SL_TRY(must_be(*sources, Kind::kList));
      for (const ConfigNode& source : sources->value.items) {
        SL_ASSIGN(const int64_t id, integer(source, "engine_input_source", 0, 9999));
        SL_TRY(check_ends(source, std::to_string(id), config_.stages[at].id));
        add_automatic(source, std::to_string(id), config_.stages[at].id);
      }
    }
    return {};
  }

  const ConfigTree& tree_;
  const ConfigNode* runtime_ = nullptr;
  const ConfigNode* connectors_ = nullptr;
  const ConfigNode* listed_ = nullptr;
  EdgeBounds defaults_;
  std::map<std::string, ConnectorSpec, std::less<>> named_;
  std::map<std::string, const ConfigNode*, std::less<>> stage_nodes_;
  std::vector<const ConfigNode*> order_;  // The stages as they stand.
  OmniTransferConfig config_;
};

}  // namespace

std::string store_namespace(const ConnectorSpec& connector) {
  const ConfigEntry* named = connector.extra.find("namespace");
  return named == nullptr ? default_namespace(connector.extra) : named->value.text;
}

Result<OmniTransferConfig> parse_transfer_config(const ConfigTree& tree) {
  return TransferReader(tree).read();
}

Result<OmniTransferConfig> load_omni_transfer_config(const std::string& path,
                                                     std::string_view platform) {
  SL_ASSIGN(const ConfigTree tree, read_config_tree(path, platform));
  SL_ASSIGN(OmniTransferConfig config, parse_transfer_config(tree));
  if (const auto ports = port_plan(config); !ports.ok()) return ports.status();
  if (const auto maps = kv_maps(config); !maps.ok()) return maps.status();
  return config;
}

}  // namespace stagelink::omni
