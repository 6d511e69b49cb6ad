#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "config/option_table.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::moriio {

// `kv_connector_extra_config` of the MoRIIO connector. Every field has one row in the option table,
// which gives its name, range and meaning; the default is the one here.
struct MoriioOptions {
  std::string host_ip;  // Empty: the host's own choice.
  uint32_t handshake_port = 6301;
  uint32_t notify_port = 61005;
  uint32_t http_port = 0;
  std::string proxy_ip;
  uint32_t proxy_ping_port = 0;
  std::string secret_file;

  bool read_mode = false;
  bool async_load = true;
  bool early_push = false;
  std::string backend = "auto";
  bool shared_cache = true;
  uint32_t qp_per_transfer = 1;
  int32_t post_batch_size = -1;
  uint32_t num_workers = 1;

  Duration transfer_timeout = std::chrono::seconds(30);
  Duration defer_timeout = std::chrono::seconds(60);
  Duration recv_abort_timeout = std::chrono::seconds(120);
  Duration handshake_timeout = std::chrono::seconds(10);
  Duration lease_margin = std::chrono::seconds(5);
};

const config::OptionTable& moriio_option_table() noexcept;

// As JSON has it. Numbers may be texts; a timeout is a number of seconds, or text with a unit.
using GivenValue = std::variant<std::string, bool, int64_t, double>;
using GivenOptions = std::vector<std::pair<std::string, GivenValue>>;
// The value of an environment variable; null: it is not set.
using ReadVariable = std::function<const char*(const char* name)>;

struct LoadedOptions {
  MoriioOptions options;
  std::vector<std::string> notes;  // To be logged once: what was taken from elsewhere or changed.
};

// Variables of former times (VLLM_MORIIO_...) count where the key is not given; each gives a note
// that names the key. Keys that belong to the host itself are left alone. Errors: unknown_key with
// the nearest name, invalid_argument with key, value and what is expected.
Result<LoadedOptions> load_moriio_options(const GivenOptions& given,
                                          const ReadVariable& variable = nullptr);

// The tables of the reference page, in Markdown.
std::string moriio_options_text();

}  // namespace stagelink::moriio
