#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "connector/omni_config/transfer_config.h"
#include "stagelink/result.h"

namespace stagelink::omni {

// Who listens on a port of a transfer-engine connector.
enum class PortPurpose : uint8_t { kRequestForwarding, kKvTransfer, kOrchestrator };
std::string_view purpose_name(PortPurpose purpose) noexcept;
Result<PortPurpose> purpose_of(std::string_view name);

inline constexpr int64_t kDefaultBasePort = 50051;

struct PortPlace {
  PortPurpose purpose = PortPurpose::kRequestForwarding;
  int64_t from_stage = 0;  // 0 to 15
  int64_t local_rank = 0;
  int64_t replica = 0;
};

// base + 0, 100 or 200 by purpose + 1024 a replica + 16 a rank + the stage, as vLLM-Omni has it.
// Errors: invalid_argument (out_of_bounds) names the value.
Result<uint16_t> connector_port(int64_t base, const PortPlace& place);

// `zmq_port` of `extra`, where it may be a variable (`$NAME`, `${NAME}`); 0: any free port, by
// `auto`.
Result<int64_t> base_port(const config::ConfigNode& extra);

struct PortUse {
  uint16_t port = 0;
  size_t edge = 0;  // Of OmniTransferConfig::edges.
  PortPlace place;
};

// Every port that the senders of a pipeline listen on, in order of use: request forwarding for each
// stage that sends through a transfer engine, KV transfer where it sends its cache, once for each
// replica and rank. One connector that serves several edges of a stage listens once. A base port of
// `auto` or 0 is any free one and has no entry. Errors: invalid_argument; already_exists
// (port_in_use) names both users.
Result<std::vector<PortUse>> port_plan(const OmniTransferConfig& config);

// "edge 0->1 (MooncakeTransferEngineConnector), kv_transfer, replica 0, rank 6".
std::string port_user(const OmniTransferConfig& config, const PortUse& use);

}  // namespace stagelink::omni
