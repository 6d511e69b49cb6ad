#include "connector/omni_config/ports.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/omni_config/connector_names.h"
#include "connector/omni_config/typed_value.h"
#include "connector/omni_config/variables.h"

namespace stagelink::omni {
namespace {

constexpr std::array<std::string_view, 3> kPurposes = {"request_forwarding", "kv_transfer",
                                                       "orchestrator"};
constexpr int64_t kPurposeStride = 100;
constexpr int64_t kReplicaStride = 1024;
constexpr int64_t kRankStride = 16;  // And the stages that there may be.

Status out_of_range(std::string_view name, int64_t value, std::string_view expected) {
  return Status(Reason::kOutOfBounds, fmt::format("{} {}: expected {}", name, value, expected));
}

// Gives ports to the users and refuses the second user of one.
class Planner {
 public:
  explicit Planner(const OmniTransferConfig& config) : config_(config) {}

  Result<std::vector<PortUse>> plan() {
    for (size_t edge = 0; edge < config_.edges.size(); ++edge) SL_TRY(add_edge(edge));
    return std::move(uses_);
  }

 private:
  Status add_edge(size_t index) {
    const Edge& edge = config_.edges[index];
    if (!is_transfer_engine(edge.connector.name)) return {};
    const auto base_of = base_port(edge.connector.extra);
    if (!base_of.ok()) {
      return Status(base_of.status().reason(),
                    fmt::format("{}: edge {}->{}: {}", edge.place, edge.from, edge.to,
                                base_of.status().message()));
    }
    const int64_t base = *base_of;
    if (base == 0 || served_already(index)) return {};
    const Stage* stage = nullptr;
    for (const Stage& candidate : config_.stages) {
      if (candidate.id == edge.from) stage = &candidate;
    }
    if (stage == nullptr) return {};
    SL_TRY(add_listeners(index, base, *stage, PortPurpose::kRequestForwarding));
    if (!stage->sends_kv) return {};
    return add_listeners(index, base, *stage, PortPurpose::kKvTransfer);
  }

  // By the listener of an earlier edge of the stage, with the same connector.
  bool served_already(size_t index) const {
    const Edge& edge = config_.edges[index];
    for (size_t earlier = 0; earlier < index; ++earlier) {
      const Edge& other = config_.edges[earlier];
      if (other.from == edge.from && other.connector.name == edge.connector.name &&
          first_difference(other.connector.extra, edge.connector.extra).empty()) {
        return true;
      }
    }
    return false;
  }

  Status add_listeners(size_t edge, int64_t base, const Stage& stage, PortPurpose purpose) {
    SL_ASSIGN(const int64_t from_stage, parse_integer(stage.id));
    for (int64_t replica = 0; replica < stage.replicas; ++replica) {
      for (int64_t rank = 0; rank < stage.tensor_parallel; ++rank) {
        PortUse use{0, edge, {purpose, from_stage, rank, replica}};
        const auto port = connector_port(base, use.place);
        if (!port.ok()) {
          return Status(port.status().reason(),
                        fmt::format("{}: {}: {}", config_.edges[edge].place,
                                    port_user(config_, use), port.status().message()));
        }
        use.port = *port;
        const auto [other, fresh] = taken_.emplace(use.port, use);
        if (!fresh) return collision(other->second, use);
        uses_.push_back(use);
      }
    }
    return {};
  }

  Status collision(const PortUse& first, const PortUse& second) const {
    return Status(Reason::kPortInUse,
                  fmt::format("{}: port {} would be used twice: by {}, and by {}; give them base "
                              "ports (zmq_port) that lie further apart",
                              config_.edges[second.edge].place, second.port,
                              port_user(config_, first), port_user(config_, second)));
  }

  const OmniTransferConfig& config_;
  std::map<uint16_t, PortUse> taken_;
  std::vector<PortUse> uses_;
};

}  // namespace

std::string_view purpose_name(PortPurpose purpose) noexcept {
  return kPurposes[static_cast<size_t>(purpose)];
}

Result<PortPurpose> purpose_of(std::string_view name) {
  for (size_t at = 0; at < kPurposes.size(); ++at) {
    if (kPurposes[at] == name) return static_cast<PortPurpose>(at);
  }
  return Status(Reason::kInvalidArgument, fmt::format("Unsupported connector purpose: {}",
                                                      escape_control(name.substr(0, 80))));
}

Result<int64_t> base_port(const config::ConfigNode& extra) {
  const config::ConfigEntry* entry = extra.find("zmq_port");
  if (entry == nullptr) return kDefaultBasePort;
  std::string text;
  if (entry->value.kind == config::ConfigNode::Kind::kScalar) {
    SL_ASSIGN(text, expand_variable(entry->value.text));
  }
  if (text == "auto") return int64_t{0};
  const auto port = parse_integer(text);
  if (port.ok() && *port >= 0 && *port <= 65535) return *port;
  return Status(Reason::kInvalidArgument,
                fmt::format("zmq_port: expected a port or auto, found `{}`",
                            escape_control(text.substr(0, 80))));
}

Result<uint16_t> connector_port(int64_t base, const PortPlace& place) {
  constexpr int64_t kLast = 65535;
  if (base < 1 || base > kLast) return out_of_range("base port", base, "1 to 65535");
  if (place.from_stage < 0 || place.from_stage >= kRankStride) {
    return out_of_range("from_stage", place.from_stage, "0 to 15");
  }
  if (place.local_rank < 0) return out_of_range("local_rank", place.local_rank, "0 or more");
  if (place.replica < 0) return out_of_range("replica", place.replica, "0 or more");
  // Beyond these nothing fits, and the sum could overflow.
  const int64_t rank = std::min(place.local_rank, kLast);
  const int64_t replica = std::min(place.replica, kLast);
  const int64_t port = base + kPurposeStride * static_cast<int64_t>(place.purpose) +
                       kReplicaStride * replica + kRankStride * rank + place.from_stage;
  if (port > kLast) return out_of_range("connector port", port, "1 to 65535");
  return static_cast<uint16_t>(port);
}

Result<std::vector<PortUse>> port_plan(const OmniTransferConfig& config) {
  return Planner(config).plan();
}

std::string port_user(const OmniTransferConfig& config, const PortUse& use) {
  const Edge& edge = config.edges[use.edge];
  return fmt::format("edge {}->{} ({}), {}, replica {}, rank {}", edge.from, edge.to,
                     edge.connector.name, purpose_name(use.place.purpose), use.place.replica,
                     use.place.local_rank);
}

}  // namespace stagelink::omni
