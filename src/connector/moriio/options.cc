#include "connector/moriio/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>

#include "base/text.h"
#include "config/option_loader.h"

namespace stagelink::moriio {
namespace {

using config::field_of;
using config::OptionRow;
using config::OptionValue;
using O = MoriioOptions;
using T = config::OptionType;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kDay = 86'400'000 * kMs;
constexpr int64_t kMaxPort = 65535;
constexpr std::string_view kPlace = "kv_connector_extra_config";

constexpr std::array<std::string_view, 6> kBackends = {"auto", "shm", "cma", "unix", "tcp", "rdma"};

Status check_backend(std::string_view text) {
  if (text == "xgmi") {
    return Status(Reason::kUnsupported, "xgmi moves memory of GPUs, which this build does not");
  }
  if (std::find(kBackends.begin(), kBackends.end(), text) != kBackends.end()) return {};
  return Status(Reason::kInvalidArgument,
                fmt::format("it is none of {}", fmt::join(kBackends, ", ")));
}

constexpr std::string_view kAddresses = "Addresses";
constexpr std::string_view kMoving = "Moving blocks";
constexpr std::string_view kTimeouts = "Timeouts";

constexpr OptionRow kRows[] = {
    {"host_ip", T::kString, kAddresses,
     "Address that peers are told and listeners bind. Empty: that of the host, which "
     "`VLLM_HOST_IP` "
     "sets.",
     field_of<&O::host_ip>, 0, 255},
    {"handshake_port", T::kInteger, kAddresses,
     "Port of rank 0 for handshakes; data parallel rank d of a pod and tensor parallel rank t take "
     "the one at + d * tensor parallel size + t.",
     field_of<&O::handshake_port>, 1, kMaxPort},
    {"notify_port", T::kInteger, kAddresses,
     "The same for notifications. The two ranges of ports must not overlap.",
     field_of<&O::notify_port>, 1, kMaxPort},
    {"http_port", T::kInteger, kAddresses,
     "Port of the server's HTTP API, which the proxy is told. Needed with `proxy_ip`.",
     field_of<&O::http_port>, 0, kMaxPort},
    {"proxy_ip", T::kString, kAddresses, "Where heartbeats go. Empty: there are none.",
     field_of<&O::proxy_ip>, 0, 255},
    {"proxy_ping_port", T::kInteger, kAddresses,
     "Port of the proxy for heartbeats. Needed with `proxy_ip`.", field_of<&O::proxy_ping_port>, 0,
     kMaxPort},
    {"secret_file", T::kString, kAddresses,
     "Handshakes, notifications and transfers only with peers that hold the same secret: a file of "
     "at least 32 random bytes, mode 0600. Empty: with anybody. Peers of vLLM's own connector have "
     "none.",
     field_of<&O::secret_file>, 0, 4095},

    {"read_mode", T::kBool, kMoving,
     "Decode reads the blocks when prefill is done. `false`: prefill writes them.",
     field_of<&O::read_mode>, 0, 0},
    {"async_load", T::kBool, kMoving,
     "Read mode: the request waits for its blocks while others run. `false`: the step waits.",
     field_of<&O::async_load>, 0, 0},
    {"early_push", T::kBool, kMoving,
     "Write mode: write each chunk of a prompt when it is computed. `false`: with the last chunk.",
     field_of<&O::early_push>, 0, 0},
    {"backend",
     T::kString,
     kMoving,
     "Transport: `auto`, `shm`, `cma`, `unix`, `tcp` or `rdma`. A build without RDMA takes `auto` "
     "for `rdma` and says so. `xgmi` is refused.",
     field_of<&O::backend>,
     1,
     16,
     {},
     check_backend},
    {"shared_cache", T::kBool, kMoving,
     "Allocate the cache in memory that peers on this host map, so that they copy directly.",
     field_of<&O::shared_cache>, 0, 0},
    {"qp_per_transfer", T::kInteger, kMoving, "Queue pairs of one transfer. RDMA only.",
     field_of<&O::qp_per_transfer>, 1, 1024},
    {"post_batch_size", T::kInteger, kMoving,
     "Work requests that are posted together. -1: the transport's choice. RDMA only.",
     field_of<&O::post_batch_size>, -1, 65536},
    {"num_workers", T::kInteger, kMoving, "Threads that post. RDMA only.",
     field_of<&O::num_workers>, 1, 1024},

    {"transfer_timeout", T::kDuration, kTimeouts,
     "How long the posted ranges of one transfer may take.", field_of<&O::transfer_timeout>, kMs,
     30 * kDay},
    {"defer_timeout", T::kDuration, kTimeouts,
     "Write mode: how long prefill waits for decode's blocks. Read mode: how long it keeps blocks "
     "that nobody asks for.",
     field_of<&O::defer_timeout>, kMs, 30 * kDay},
    {"recv_abort_timeout", T::kDuration, kTimeouts,
     "How long decode waits for the blocks of one request before it counts as failed.",
     field_of<&O::recv_abort_timeout>, kMs, 30 * kDay},
    {"handshake_timeout", T::kDuration, kTimeouts,
     "How long a peer may take to answer a handshake.", field_of<&O::handshake_timeout>, kMs,
     30 * kDay},
    {"lease_margin", T::kDuration, kTimeouts,
     "Read mode: how long before a lease on prefill's blocks ends decode stops reading them.",
     field_of<&O::lease_margin>, kMs, 30 * kDay},
};

constexpr config::OptionTable kTable = {"moriio", "", kRows, {}};

struct OldVariable {
  const char* name;
  std::string_view key;
};
constexpr std::array<OldVariable, 5> kVariables = {{
    {"VLLM_MORIIO_CONNECTOR_READ_MODE", "read_mode"},
    {"VLLM_MORIIO_QP_PER_TRANSFER", "qp_per_transfer"},
    {"VLLM_MORIIO_POST_BATCH_SIZE", "post_batch_size"},
    {"VLLM_MORIIO_NUM_WORKERS", "num_workers"},
    {"VLLM_MORIIO_TRANSFER_TIMEOUT_S", "recv_abort_timeout"},
}};

// What vLLM itself writes into the map or reads from it, whatever the connector.
constexpr std::array<std::string_view, 3> kHostKeys = {"connectors", "cpu_bytes_to_use",
                                                       "self_describing_kv_events"};

std::string lower_trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string shown(const GivenValue& value) {
  struct Show {
    std::string operator()(const std::string& text) const { return to_plain_text(text, 80); }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(double number) const { return fmt::format("{}", number); }
  };
  return std::visit(Show{}, value);
}

Status mistyped(const OptionRow& row, const GivenValue& value, std::string_view expected) {
  return Status(Reason::kInvalidArgument,
                fmt::format("{}: `{}` is not {}", row.name, shown(value), expected));
}

// A plain number in text; empty if it is none, as "30s" or "nan".
std::optional<double> plain_number(const std::string& text) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || c == 'e';
  });
  if (!digits) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return *end == '\0' ? std::optional(number) : std::nullopt;
}

Result<OptionValue> duration_of(const OptionRow& row, const GivenValue& value) {
  std::optional<double> seconds;
  if (const auto* text = std::get_if<std::string>(&value)) {
    const std::string plain = lower_trimmed(*text);
    seconds = plain_number(plain);
    if (!seconds.has_value()) return OptionValue(plain);
  } else if (const auto* whole = std::get_if<int64_t>(&value)) {
    seconds = static_cast<double>(*whole);
  } else if (const auto* real = std::get_if<double>(&value)) {
    seconds = *real;
  }
  constexpr double kMostSeconds = 1e9;
  if (!seconds.has_value() || !std::isfinite(*seconds) || *seconds <= 0 ||
      *seconds > kMostSeconds) {
    return mistyped(row, value, "a finite number of seconds above 0, or a duration as `30s`");
  }
  return OptionValue(format_duration(Duration(static_cast<int64_t>(*seconds * 1e9))));
}

Result<OptionValue> flag_of(const OptionRow& row, const GivenValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return OptionValue(*flag);
  const auto* text = std::get_if<std::string>(&value);
  const std::string plain = text != nullptr ? lower_trimmed(*text) : shown(value);
  if (plain == "1") return OptionValue(true);
  if (plain == "0") return OptionValue(false);
  const auto flag = parse_bool(plain);
  if (!flag.ok()) return mistyped(row, value, "one of true, false, 1, 0");
  return OptionValue(*flag);
}

Result<OptionValue> integer_of(const OptionRow& row, const GivenValue& value) {
  if (const auto* whole = std::get_if<int64_t>(&value)) return OptionValue(*whole);
  if (const auto* text = std::get_if<std::string>(&value)) return OptionValue(lower_trimmed(*text));
  const auto* real = std::get_if<double>(&value);
  if (real == nullptr || std::trunc(*real) != *real || std::abs(*real) > 1e15) {
    return mistyped(row, value, config::expected_text(row));
  }
  return OptionValue(static_cast<int64_t>(*real));
}

Result<OptionValue> text_of(const OptionRow& row, const GivenValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return mistyped(row, value, "a text");
  return OptionValue(row.check == check_backend ? lower_trimmed(*text) : *text);
}

Status set(MoriioOptions& options, const OptionRow& row, const GivenValue& value) {
  const auto convert = row.type == T::kDuration  ? duration_of
                       : row.type == T::kBool    ? flag_of
                       : row.type == T::kInteger ? integer_of
                                                 : text_of;
  SL_ASSIGN(const OptionValue converted, convert(row, value));
  return config::set_value(row, &options, converted);
}

Status at(std::string_view where, const Status& status) {
  if (status.ok()) return status;
  return Status(status.reason(), fmt::format("{}.{}", where, status.message()));
}

bool is_given(const GivenOptions& given, std::string_view key) {
  return std::any_of(given.begin(), given.end(),
                     [key](const auto& option) { return option.first == key; });
}

Status apply_given(MoriioOptions& options, const GivenOptions& given) {
  for (size_t i = 0; i < given.size(); ++i) {
    const auto& [key, value] = given[i];
    if (std::find(kHostKeys.begin(), kHostKeys.end(), key) != kHostKeys.end()) continue;
    const OptionRow* row = kTable.find(key);
    if (row == nullptr) {
      const Status status = config::unknown_option(kTable, key);
      return Status(status.reason(), fmt::format("{}: {}", kPlace, status.message()));
    }
    if (is_given(GivenOptions(given.begin(), given.begin() + static_cast<ptrdiff_t>(i)), key)) {
      return Status(Reason::kInvalidArgument, fmt::format("{}.{}: given twice", kPlace, key));
    }
    SL_TRY(at(kPlace, set(options, *row, value)));
  }
  return {};
}

Status apply_variables(LoadedOptions& loaded, const GivenOptions& given,
                       const ReadVariable& variable) {
  for (const OldVariable& old : kVariables) {
    const char* text = variable ? variable(old.name) : std::getenv(old.name);
    if (text == nullptr || text[0] == '\0' || is_given(given, old.key)) continue;
    const Status status = set(loaded.options, *kTable.find(old.key), std::string(text));
    if (!status.ok()) {
      return Status(status.reason(), fmt::format("{}: {}", old.name, status.message()));
    }
    loaded.notes.push_back(fmt::format("environment variable {} is deprecated; set `{}` in {}",
                                       old.name, old.key, kPlace));
  }
  return {};
}

Status check_together(const MoriioOptions& options) {
  const auto wrong = [](std::string_view message) {
    return Status(Reason::kInvalidArgument, fmt::format("{}.{}", kPlace, message));
  };
  if (options.handshake_port == options.notify_port) {
    return wrong(fmt::format("notify_port: {} is the handshake_port too", options.notify_port));
  }
  if (options.proxy_ip.empty()) return {};
  if (options.http_port == 0) return wrong("http_port: it is needed with proxy_ip");
  if (options.proxy_ping_port == 0) return wrong("proxy_ping_port: it is needed with proxy_ip");
  return {};
}

}  // namespace

const config::OptionTable& moriio_option_table() noexcept { return kTable; }

Result<LoadedOptions> load_moriio_options(const GivenOptions& given, const ReadVariable& variable) {
  LoadedOptions loaded;
  SL_TRY(apply_given(loaded.options, given));
  SL_TRY(apply_variables(loaded, given, variable));
  SL_TRY(check_together(loaded.options));
  if (loaded.options.backend == "rdma") {
    loaded.options.backend = "auto";
    loaded.notes.push_back(
        fmt::format("{}.backend: this build has no RDMA; `auto` is taken for `rdma`", kPlace));
  }
  return loaded;
}

std::string moriio_options_text() {
  const MoriioOptions defaults;
  std::string out = config::options_tables(kTable, &defaults);
  // Below a heading of the page.
  for (size_t at = 0; (at = out.find("\n## ", at)) != std::string::npos; at += 5) {
    out.insert(at + 1, "#");
  }
  return out;
}

}  // namespace stagelink::moriio
