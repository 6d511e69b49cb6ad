#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "config/config_node.h"
#include "config/option_table.h"
#include "stagelink/result.h"
#include "stagelink/store_options.h"

namespace stagelink::store_connector {

// `extra` of a connector that passes through a store. Every field has one row in the option table,
// which gives its name, range and meaning; those of StoreOptions are in that of the store.
struct ConnectorOptions {
  StoreOptions store;
  std::string name_space;           // Empty: a digest of `extra`; see omni::default_namespace().
  int32_t get_sub_timeout_ms = -1;  // -1: not given, a get looks once.
  Duration max_wait = std::chrono::minutes(10);
  Duration put_timeout = std::chrono::seconds(5);
  bool delete_consumed = true;
  std::string wire = "fast";
  bool checksum = false;
  bool copy = false;
  uint64_t view_min_bytes = 64 << 10;
  bool revive = false;
  int32_t window_size = -1;
  int32_t max_inflight = -1;
  int32_t stage_id = -1;  // Told by the host.

  ConnectorOptions();
  // How long a get waits that is given no deadline.
  Duration get_wait() const noexcept;
};

const config::OptionTable& connector_option_table() noexcept;

// Where a node stands, for messages: "p.yaml:4:7". Null: only the key is named.
using PlaceOf = std::function<std::string(const config::ConfigNode&)>;

// Keys that nobody here knows belong to the host's own code, which shares the map, and are left
// alone unless they are nearly one of ours. `$NAME` and `${NAME}` stand for environment variables.
// Errors: unknown_key with the nearest name, invalid_argument with key, value and what is expected.
Result<ConnectorOptions> load_connector_options(const config::ConfigNode& extra,
                                                const PlaceOf& place = nullptr);

// The table of the reference page, in Markdown.
std::string connector_options_text();

}  // namespace stagelink::store_connector
