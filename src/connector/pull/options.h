#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config_node.h"
#include "config/option_table.h"
#include "stagelink/result.h"

namespace stagelink::pull {

enum class Role : uint8_t {
  kSender,    // Puts and listens; may get as well.
  kReceiver,  // Gets. Listens to nobody.
  kDual,      // As a sender.
};

// `extra` of a connector that pulls. Every field has one row in the option table, which gives its
// name, range and meaning; the default is the one here.
struct PullOptions {
  // Addresses.
  std::string host = "auto";   // Where it listens.
  std::string advertise_host;  // Told to peers. Empty: where it listens.
  std::string interface;       // Whose address `host: auto` takes.
  uint32_t zmq_port = 0;       // 0: any free one.
  uint32_t rpc_port = 0;
  std::string sender_host;  // The sender of gets that name none.
  uint32_t sender_zmq_port = 0;
  std::string secret_file;
  std::string runtime_dir;

  // Moving.
  std::string protocol = "auto";
  std::string device_name;
  std::string memory_pool_device;  // Empty: "cpu", or "npu" with `protocol: ascend`.
  uint64_t memory_pool_size = uint64_t{1} << 30;
  Effort huge_pages = Effort::kOff;
  Role role = Role::kSender;
  bool checksum = false;
  bool compat_030 = false;

  // Times.
  Duration buffer_ttl = std::chrono::seconds(300);  // Zero: for ever.
  Duration claim_timeout = std::chrono::seconds(60);
  Duration ask_timeout = std::chrono::milliseconds(500);
  Duration put_timeout = std::chrono::seconds(5);

  // Bounds.
  uint32_t max_offers = 16'384;
  uint32_t max_waiting = 4096;

  // Told by the host.
  std::string from_stage;
  std::string to_stage;
  int32_t stage_id = -1;

  bool may_put() const noexcept { return role != Role::kReceiver; }
  // The default filled in: "cpu", "npu", "npu:1".
  std::string pool_device() const;
};

const config::OptionTable& pull_option_table() noexcept;

struct LoadedPullOptions {
  PullOptions options;
  std::vector<std::string> notes;  // To be logged once: what was changed.
};

// Where a node stands, for messages: "p.yaml:4:7". Null: only the key is named.
using PlaceOf = std::function<std::string(const config::ConfigNode&)>;

// Keys that nobody here knows belong to the host's own code, which shares the map, and are left
// alone unless they are nearly one of ours. `$NAME` and `${NAME}` stand for environment variables.
// Errors: unknown_key with the nearest name, invalid_argument with key, value and what is expected;
// unsupported for what does not go together.
Result<LoadedPullOptions> load_pull_options(const config::ConfigNode& extra,
                                            const PlaceOf& place = nullptr);

// Whether the options go together, however they were set.
Status check_pull_options(const PullOptions& options);

// The tables of the reference page, in Markdown.
std::string pull_options_text();

}  // namespace stagelink::pull
