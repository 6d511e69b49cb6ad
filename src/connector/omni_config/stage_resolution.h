#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "connector/omni_config/ports.h"
#include "connector/omni_config/transfer_config.h"
#include "stagelink/result.h"

// What one stage is given of a pipeline's edges, in vLLM-Omni's forms. Ours that pass through a
// store get the bounds of their edge as well (`window_size`, `max_inflight`).
namespace stagelink::omni {

struct StageConnector {
  std::string key;  // from_stage_X or to_stage_Y
  ConnectorSpec connector;
};

// Incoming edges with the role of a receiver; for stage 0 the outgoing ones, too, as a sender.
std::vector<StageConnector> stage_connectors(const OmniTransferConfig& config,
                                             std::string_view stage);

// The one connector of a stage's payloads: that of its first incoming edge, else of its first
// outgoing one. A middle stage with NIXL gets the other edge as `outgoing`. Errors:
// invalid_argument for one without NIXL there.
Result<std::optional<ConnectorSpec>> stage_connector(const OmniTransferConfig& config,
                                                     std::string_view stage);

// The connector of a stage's KV cache: that of the outgoing edge with the smallest `to`, else of
// the incoming one with the smallest `from`.
struct KvConnector {
  ConnectorSpec connector;
  std::string from;
  std::string to;
};
std::optional<KvConnector> kv_connector(const OmniTransferConfig& config, std::string_view stage);

enum class Role : uint8_t { kNone, kSender, kReceiver };
struct WorkerPlace {
  int64_t stage_id = 0;
  Role role = Role::kNone;
  PortPurpose purpose = PortPurpose::kRequestForwarding;
  int64_t local_rank = 0;
  int64_t replica = 0;
};

// Adds stage_id, role and, for transfer engines, the ports of one worker. Errors: those of
// connector_port.
Result<ConnectorSpec> resolve_connector(ConnectorSpec spec, const WorkerPlace& place);

}  // namespace stagelink::omni
