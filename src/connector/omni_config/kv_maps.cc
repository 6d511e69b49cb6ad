#include "connector/omni_config/kv_maps.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/omni_config/typed_value.h"

namespace stagelink::omni {
namespace {

// What the two stages of an edge say of one value, which must be the same.
class StageValue {
 public:
  StageValue(const Edge& edge, std::string_view name) : edge_(edge), name_(name) {}

  // `map`: null or of any kind: says nothing.
  Status read(const Stage& stage, const config::ConfigNode* map) {
    const config::ConfigEntry* entry = map == nullptr ? nullptr : map->find(name_);
    if (entry == nullptr) return {};
    const TypedValue value = typed_value(entry->value);
    const int64_t* number = std::get_if<int64_t>(&value);
    const bool* flag = std::get_if<bool>(&value);
    if ((number == nullptr && flag == nullptr) || (number != nullptr && *number < 0)) {
      return fail(fmt::format("{} of stage {} is no number", name_, stage.id));
    }
    return state(number != nullptr ? *number : int64_t{*flag}, stage, name_);
  }
  Status state(int64_t value, const Stage& stage, std::string_view source) {
    const std::string said = fmt::format("{} of stage {} says {}", source, stage.id, value);
    if (value_.has_value() && *value_ != value) {
      return fail(fmt::format("{}: {}, and {}", name_, said_, said));
    }
    if (!value_.has_value()) said_ = said;
    value_ = value;
    return {};
  }
  bool stated() const noexcept { return value_.has_value(); }
  uint32_t value_or(uint32_t other) const noexcept {
    return static_cast<uint32_t>(std::min<int64_t>(value_.value_or(other), UINT32_MAX));
  }

 private:
  Status fail(const std::string& what) const {
    return Status(Reason::kInvalidArgument, fmt::format("{}: KV cache of edge {}->{}: {}",
                                                        edge_.place, edge_.from, edge_.to, what));
  }

  const Edge& edge_;
  std::string_view name_;
  std::optional<int64_t> value_;
  std::string said_;
};

const Stage* stage_of(const OmniTransferConfig& config, std::string_view id) noexcept {
  for (const Stage& stage : config.stages) {
    if (stage.id == id) return &stage;
  }
  return nullptr;
}

Result<kv::TpTopology> topology_of(const Edge& edge, const Stage& from, const Stage& to) {
  StageValue from_tp(edge, "from_tp");
  StageValue to_tp(edge, "to_tp");
  StageValue heads(edge, "kv_heads");
  StageValue mla(edge, "mla");
  for (const Stage* const stage : {&from, &to}) {
    const config::ConfigEntry* mapping = stage->kv_config.find("rank_mapping");
    const config::ConfigNode* sizes = mapping == nullptr ? nullptr : &mapping->value;
    if (sizes != nullptr &&
        (sizes->find("from_tp") == nullptr || sizes->find("to_tp") == nullptr)) {
      return Status(Reason::kInvalidArgument,
                    fmt::format("{}: KV cache of edge {}->{}: rank_mapping of stage {} needs both "
                                "from_tp and to_tp",
                                edge.place, edge.from, edge.to, stage->id));
    }
    SL_TRY(from_tp.read(*stage, sizes));
    SL_TRY(to_tp.read(*stage, sizes));
    SL_TRY(heads.read(*stage, &stage->kv_config));
    SL_TRY(mla.read(*stage, &stage->kv_config));
  }
  const auto stated = [](StageValue& size, const Stage& stage) -> Status {
    if (size.stated() && !stage.tensor_parallel_stated) return {};
    return size.state(stage.tensor_parallel, stage, "tensor_parallel_size");
  };
  SL_TRY(stated(from_tp, from));
  SL_TRY(stated(to_tp, to));
  return kv::TpTopology{from_tp.value_or(1), to_tp.value_or(1), heads.value_or(0),
                        mla.value_or(0) != 0};
}

}  // namespace

Result<std::vector<KvMap>> kv_maps(const OmniTransferConfig& config) {
  std::vector<KvMap> out;
  for (size_t at = 0; at < config.edges.size(); ++at) {
    const Edge& edge = config.edges[at];
    const Stage* const from = stage_of(config, edge.from);
    const Stage* const to = stage_of(config, edge.to);
    if (from == nullptr || to == nullptr || !from->sends_kv) continue;
    SL_ASSIGN(const kv::TpTopology topology, topology_of(edge, *from, *to));
    auto map = kv::RankMap::create(topology);
    if (!map.ok()) {
      return Status(map.status().reason(),
                    fmt::format("{}: KV cache of edge {}->{}: {}", edge.place, edge.from, edge.to,
                                map.status().message()));
    }
    out.push_back({at, *std::move(map)});
  }
  return out;
}

}  // namespace stagelink::omni
