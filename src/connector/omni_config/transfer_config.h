#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "connector/omni_config/config_tree.h"
#include "stagelink/result.h"

namespace stagelink::omni {

// What an edge is built from: the name of a connector and what its constructor is given.
struct ConnectorSpec {
  std::string name;
  config::ConfigNode extra;  // A map; its scalars are typed by typed_value().
};

// -1: no bound.
struct EdgeBounds {
  int64_t window_size = -1;   // Objects that are put and not yet consumed.
  int64_t max_inflight = -1;  // Puts that are under way.
  bool operator==(const EdgeBounds&) const = default;
};

struct Edge {
  std::string from;  // Stage ids.
  std::string to;
  ConnectorSpec connector;
  std::string reference;   // Its key under `connectors`; empty: written at the stage, or automatic.
  bool automatic = false;  // Nothing was said: shared memory of this host.
  EdgeBounds bounds;
  std::string place;  // What it was read from.
};

struct Stage {
  std::string id;
  int64_t replicas = 1;
  int64_t tensor_parallel = 1;
  bool tensor_parallel_stated = false;
  bool sends_kv = false;         // omni_kv_config.need_send_cache
  config::ConfigNode kv_config;  // omni_kv_config; empty: there is none.
};

// Which stage hands its results to which, and by what.
//
// Thread-safety: a value.
struct OmniTransferConfig {
  bool enabled = true;  // runtime.enabled; without it there are no edges.
  std::vector<Stage> stages;
  std::vector<Edge> edges;

  const Edge* find_edge(std::string_view from, std::string_view to) const noexcept;
};

// The store that the ends of an edge meet in: `namespace` of `extra`, else default_namespace().
std::string store_namespace(const ConnectorSpec& connector);

// Both schemas: `connectors`, `edges`, `stages`, and of former times `runtime.connectors`,
// `runtime.edges`, `stage_args`. Errors: invalid_argument and unknown_key, with file and line.
Result<OmniTransferConfig> parse_transfer_config(const ConfigTree& tree);

// read_config_tree, parse_transfer_config, and of it all the ports (port_plan()) and the ranks
// (kv_maps()).
Result<OmniTransferConfig> load_omni_transfer_config(const std::string& path,
                                                     std::string_view platform = {});

}  // namespace stagelink::omni
