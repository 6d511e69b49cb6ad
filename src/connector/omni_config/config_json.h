#pragma once

#include <string>
#include <string_view>

#include "connector/omni_config/stage_resolution.h"
#include "connector/omni_config/transfer_config.h"

// The forms in which scripts and Python see a pipeline. Every function gives JSON.
namespace stagelink::omni {

// {"enabled", "stages": [{"id", "replicas", "tensor_parallel", "sends_kv"}],
//  "edges": [{"from", "to", "name", "extra", "reference", "automatic", "window_size",
//             "max_inflight", "namespace"}],
//  "ports": [{"port", "edge", "purpose", "from_stage", "replica", "rank"}],
//  "kv": [{"edge", "from_tp", "to_tp", "kv_heads", "mla", "fan", "ranks"}]}
// `namespace` is there for connectors of ours that pass through a store.
Result<std::string> transfer_config_json(const OmniTransferConfig& config);

// The edges of such a text; all else is left out.
Result<OmniTransferConfig> transfer_config_of_json(std::string_view json);

// What one stage is given:
// {"connectors": {"from_stage_0": {"spec": {"name", "extra"}}},
//  "connector": {"name", "extra"} or {}, "kv": [{"type", ...}, "from", "to"] or [null, null, null]}
Result<std::string> stage_json(const OmniTransferConfig& config, std::string_view stage);

// resolve_connector over {"name", "extra"}.
Result<std::string> resolve_connector_json(std::string_view json, const WorkerPlace& place);

}  // namespace stagelink::omni
