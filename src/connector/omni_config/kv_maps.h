#pragma once

#include <cstddef>
#include <vector>

#include "connector/kv/rank_map.h"
#include "connector/omni_config/transfer_config.h"
#include "stagelink/result.h"

namespace stagelink::omni {

// Which ranks hand the KV cache of an edge to which.
struct KvMap {
  size_t edge = 0;  // Of OmniTransferConfig::edges.
  kv::RankMap map;
};

// One for each edge whose sender has `need_send_cache`. The sizes are those of `rank_mapping` of
// either stage, else of the stages' tensor parallelism; `kv_heads` and `mla` of either
// `omni_kv_config` count, too. Errors: invalid_argument for a mapping that is only half there,
// differs between the stages or from what a stage states, or cannot be routed.
Result<std::vector<KvMap>> kv_maps(const OmniTransferConfig& config);

}  // namespace stagelink::omni
