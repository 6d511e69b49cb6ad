#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/config_node.h"
#include "config/option_table.h"
#include "connector/pull/options.h"
#include "stagelink/result.h"

namespace stagelink::encoder_cache {

// `ec_connector_extra_config` of vLLM, and what the host says besides. Every field has one row in
// the option table, which gives its name, range and meaning; the default is the one here.
struct CacheOptions {
  std::string ec_mode = "pull";  // Or push: without a registry, to who has reserved.

  // The registry.
  std::string remote_registry_url;  // Empty, at a producer: its own, at registry_http_port.
  std::string registry_host;        // Empty: `host`.
  uint32_t registry_http_port = 9018;
  Duration registry_lease = std::chrono::seconds(30);
  Duration registry_timeout = std::chrono::seconds(5);
  Duration registry_wait = Duration::zero();  // For a hash that nobody has published.

  // Addresses.
  std::string host = "auto";
  std::string advertise_host;
  std::string interface;
  uint32_t zmq_port = 0;
  uint32_t rpc_port = 0;
  std::string secret_file;
  std::string runtime_dir;

  // Moving.
  std::string mooncake_protocol = "rdma";
  Duration pull_timeout = std::chrono::seconds(120);
  Duration lease_timeout = std::chrono::seconds(60);
  Duration space_timeout = std::chrono::seconds(5);
  Duration control_timeout = std::chrono::milliseconds(500);
  uint32_t load_threads = 2;
  bool checksum = false;
  Duration push_wait_timeout = std::chrono::seconds(60);
  Duration reservation_ttl = std::chrono::seconds(30);
  bool seed_peers = true;  // Speak with peers that know no leases.

  // Bounds.
  uint64_t buffer_size = 1'000'000'000;  // Of the pool.
  Effort huge_pages = Effort::kOff;
  uint32_t max_entries = 16'384;

  // Told by the host: what must be the same on both sides, in words.
  std::string identity;
};

inline bool is_push(const CacheOptions& options) noexcept { return options.ec_mode == "push"; }

const config::OptionTable& cache_option_table() noexcept;

// Errors: unknown_key with the nearest name, invalid_argument with key, value and what is expected.
// Keys that are near to none of ours are the host's and left alone.
Result<CacheOptions> load_cache_options(const config::ConfigNode& extra);

// The tables of the reference page, in Markdown.
std::string cache_options_text();

// Those of the connector that moves the bytes.
pull::PullOptions pull_options_of(const CacheOptions& options, pull::Role role);

// Under which an embedding is offered: two sides of different identity never meet.
std::string offer_key(std::string_view identity, std::string_view mm_hash);
// The same for those it is handed on to, who were told its turn.
std::string hand_on_key(std::string_view identity, std::string_view mm_hash, uint64_t turn);
// Under which a producer tells its identity.
inline constexpr std::string_view kIdentityKey = "stagelink.encoder_cache.identity";

}  // namespace stagelink::encoder_cache
