#include "connector/pull/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "base/runtime_dir.h"
#include "base/text.h"
#include "config/option_loader.h"
#include "connector/omni_config/typed_value.h"
#include "connector/omni_config/variables.h"

namespace stagelink::pull {
namespace {

using config::ConfigEntry;
using config::ConfigNode;
using config::field_of;
using config::OptionRow;
using config::OptionValue;
using P = PullOptions;
using PullType = config::OptionType;

constexpr int64_t kPullMs = 1'000'000;
constexpr int64_t kPullDay = 86'400'000 * kPullMs;
constexpr int64_t kPullMaxPort = 65535;
constexpr int64_t kPullAnyCount = 1'000'000;
constexpr int64_t kLeastPool = 4096;

constexpr std::string_view kPullAddresses = "Addresses";
constexpr std::string_view kPullMoving = "Moving";
constexpr std::string_view kPullTimes = "Times";
constexpr std::string_view kPullBounds = "Bounds";
constexpr std::string_view kPullPlace = "Place";

constexpr std::array<std::string_view, 3> kRoleNames = {"sender", "receiver", "dual"};
constexpr std::array<std::string_view, 7> kProtocols = {"auto", "shm",  "cma",   "unix",
                                                        "tcp",  "rdma", "ascend"};

Status check_protocol(std::string_view text) {
  if (std::ranges::find(kProtocols, text) != kProtocols.end()) return {};
  return Status(Reason::kInvalidArgument,
                fmt::format("it is none of {}", fmt::join(kProtocols, ", ")));
}

Status check_device(std::string_view text) {
  const bool numbered =
      text.starts_with("npu:") && text.size() > 4 &&
      std::all_of(text.begin() + 4, text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (text == "cpu" || text == "npu" || numbered) return {};
  return Status(Reason::kInvalidArgument, "it is `cpu`, `npu` or `npu:N`");
}

constexpr OptionRow kPullRows[] = {
    {"host", PullType::kString, kPullAddresses,
     "Where control port and engine listen: an address of this host. `auto`, as the wildcard "
     "addresses: the first one of `interface`, else of the first interface that is up.",
     field_of<&P::host>, 0, 255},
    {"advertise_host", PullType::kString, kPullAddresses,
     "The address that peers are told, where it differs (NAT, containers). Default: `host`.",
     field_of<&P::advertise_host>, 0, 255},
    {"interface", PullType::kString, kPullAddresses,
     "The interface whose address `host: auto` takes.", field_of<&P::interface>, 0, 15},
    {"zmq_port", PullType::kInteger, kPullAddresses,
     "Control port of a sender. `auto` or 0: any free one.", field_of<&P::zmq_port>, 0,
     kPullMaxPort},
    {"rpc_port", PullType::kInteger, kPullAddresses,
     "Port of the engine that moves the bytes. `auto` or 0: any free one.", field_of<&P::rpc_port>,
     0, kPullMaxPort},
    {"sender_host", PullType::kString, kPullAddresses,
     "The sender of gets that name none; `update_sender_info` changes it. `auto`: nobody.",
     field_of<&P::sender_host>, 0, 255},
    {"sender_zmq_port", PullType::kInteger, kPullAddresses, "Its `zmq_port`.",
     field_of<&P::sender_zmq_port>, 0, kPullMaxPort},
    {"secret_file", PullType::kString, kPullAddresses,
     "Control messages and transfers only with peers that hold the same secret: a file of at least "
     "32 random bytes, mode 0600. Empty: with anybody who reaches the ports.",
     field_of<&P::secret_file>, 0, 4095},
    {"runtime_dir", PullType::kString, kPullAddresses,
     "Where the sockets for receivers of this host lie. Default: as for the engine.",
     field_of<&P::runtime_dir>, 0, kMaxRuntimeDirBytes},

    {"protocol",
     PullType::kString,
     kPullMoving,
     "How bytes are moved: `auto`, `shm`, `cma`, `unix`, `tcp` or `rdma` by our engine (a build "
     "without RDMA takes `auto` for `rdma` and says so); `ascend` by the engine of "
     "`yr.datasystem`, between NPUs.",
     field_of<&P::protocol>,
     1,
     16,
     {},
     check_protocol},
    {"device_name", PullType::kString, kPullMoving,
     "The device of `protocol: ascend`, as `npu:0`. `auto`: that of the local rank.",
     field_of<&P::device_name>, 0, 255},
    {"memory_pool_device",
     PullType::kString,
     kPullMoving,
     "Where the pool is: `cpu`; `npu` or `npu:N` with `protocol: ascend`, which has no other. "
     "Default: the one that goes with `protocol`.",
     field_of<&P::memory_pool_device>,
     0,
     64,
     {},
     check_device},
    {"memory_pool_size", PullType::kBytes, kPullMoving,
     "Registered memory that payloads are put from and got into.", field_of<&P::memory_pool_size>,
     kLeastPool, std::numeric_limits<int64_t>::max() / 2},
    {"huge_pages", PullType::kEffort, kPullMoving,
     "Back the pool with huge pages: copies of whole pools gain, and depend less on where pages "
     "lie.",
     field_of<&P::huge_pages>, 0, 0},
    {"role", PullType::kChoice, kPullMoving,
     "`sender`: puts and listens, and may get. `receiver`: gets only. `dual`: as `sender`.",
     field_of<&P::role>, 0, 0, kRoleNames},
    {"checksum", PullType::kBool, kPullMoving,
     "Put a checksum with each payload; receivers compare it.", field_of<&P::checksum>, 0, 0},
    {"compat_030", PullType::kBool, kPullMoving,
     "Also serve receivers, and get from senders, that speak the messages of vLLM-Omni 0.30. These "
     "cannot prove who they are: not with `secret_file`.",
     field_of<&P::compat_030>, 0, 0},

    {"buffer_ttl_seconds", PullType::kDuration, kPullTimes,
     "How long a payload is kept that nobody has read; one that is being read is kept longer. 0 or "
     "less: until it is read, replaced or cleaned.",
     field_of<&P::buffer_ttl>, 0, 3650 * kPullDay},
    {"claim_timeout", PullType::kDuration, kPullTimes,
     "How long a receiver may take to read what it has claimed.", field_of<&P::claim_timeout>,
     10 * kPullMs, kPullDay},
    {"ask_timeout", PullType::kDuration, kPullTimes,
     "How long a sender may take to answer, beyond what a get waits for its key.",
     field_of<&P::ask_timeout>, kPullMs, kPullDay},
    {"put_timeout", PullType::kDuration, kPullTimes, "How long a put waits for space in the pool.",
     field_of<&P::put_timeout>, kPullMs, kPullDay},

    {"max_offers", PullType::kInteger, kPullBounds,
     "Payloads that are held at a time, those included that are replaced and still read.",
     field_of<&P::max_offers>, 1, kPullAnyCount},
    {"max_waiting", PullType::kInteger, kPullBounds,
     "Gets that wait at this sender for a put; more are `busy`.", field_of<&P::max_waiting>, 0,
     kPullAnyCount},

    {"from_stage", PullType::kString, kPullPlace, "The stage that sends; the host adds it.",
     field_of<&P::from_stage>, 0, 255},
    {"to_stage", PullType::kString, kPullPlace, "The stage that receives; the host adds it.",
     field_of<&P::to_stage>, 0, 255},
    {"stage_id", PullType::kInteger, kPullPlace,
     "The stage that the connector belongs to; the host adds it.", field_of<&P::stage_id>, -1,
     kPullAnyCount},
};

// What others read from the same map.
constexpr std::array<std::string_view, 6> kOthersKeys = {"type",         "outgoing", "window_size",
                                                         "max_inflight", "name",     "namespace"};

constexpr std::array<std::string_view, 3> kAutoNames = {"zmq_port", "rpc_port", "sender_host"};

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Reads one `extra`.
class PullOptionsReader {
 public:
  explicit PullOptionsReader(const PlaceOf& place) : place_(place) {}

  Result<LoadedPullOptions> read(const ConfigNode& extra) {
    for (const ConfigEntry& entry : extra.entries) {
      const Status status = read_entry(entry);
      if (!status.ok()) return placed(entry.value, status);
    }
    if (const Status status = check_pull_options(loaded_.options); !status.ok()) {
      return placed(place_of(extra, status.message()), status);
    }
    if (loaded_.options.protocol == "rdma") {
      loaded_.options.protocol = "auto";
      loaded_.notes.emplace_back("protocol: this build has no RDMA; `auto` is taken for `rdma`");
    }
    return std::move(loaded_);
  }

 private:
  Status placed(const ConfigNode& where, const Status& status) const {
    if (place_ == nullptr) return status;
    return Status(status.reason(), fmt::format("{}: {}", place_(where), status.message()));
  }

  // Where the option is set that a message begins with; else the whole.
  static const ConfigNode& place_of(const ConfigNode& extra, std::string_view message) {
    const std::string_view name = message.substr(0, message.find(':'));
    for (const ConfigEntry& entry : extra.entries) {
      if (entry.key.text == name) return entry.value;
    }
    return extra;
  }

  Status read_entry(const ConfigEntry& entry) {
    const std::string& name = entry.key.text;
    if (is_one_of(name, kOthersKeys)) return {};
    const OptionRow* const row = pull_option_table().find(name);
    if (row == nullptr) return refuse_near(name);
    // A host writes null for what is not set.
    if (entry.value.kind == ConfigNode::Kind::kScalar && entry.value.is_null()) return {};
    SL_ASSIGN(OptionValue value, value_of(*row, entry.value));
    if (const auto* text = std::get_if<std::string>(&value)) {
      // The default stands for it.
      if (*text == "auto" && is_one_of(name, kAutoNames)) return {};
      if (text->empty() && row->type == PullType::kString) return {};
      if (row->type == PullType::kDuration) {
        SL_ASSIGN(value, seconds_or_text(*row, *text));
      }
    }
    return config::set_value(*row, &loaded_.options, value);
  }

  static Status refuse_near(std::string_view name) {
    std::vector<std::string_view> names;
    for (const OptionRow& row : pull_option_table().rows) names.push_back(row.name);
    const std::string_view near = nearest_name(name, names);
    if (near.empty()) return {};
    return Status(Reason::kUnknownKey, fmt::format("unknown option `{}`; did you mean `{}`?",
                                                   escape_control(name.substr(0, 80)), near));
  }

  static Status refuse(const OptionRow& row, std::string_view found) {
    return Status(Reason::kInvalidArgument, fmt::format("{}: expected {}, found {}", row.name,
                                                        config::expected_text(row), found));
  }

  static Result<OptionValue> value_of(const OptionRow& row, const ConfigNode& node) {
    if (node.kind != ConfigNode::Kind::kScalar) return refuse(row, "a list or a map");
    // Numbers and truths of JSON have their type; texts and YAML get that of the row.
    if (node.typed && !node.quoted) {
      const omni::TypedValue value = omni::typed_value(node);
      if (const bool* truth = std::get_if<bool>(&value)) return OptionValue(*truth);
      const bool as_text = row.type == PullType::kString || row.type == PullType::kDuration;
      if (as_text) return OptionValue(node.text);
      if (const int64_t* whole = std::get_if<int64_t>(&value)) return OptionValue(*whole);
      return refuse(row, "`" + node.text + "`");
    }
    SL_ASSIGN(std::string text, omni::expand_variable(node.text));
    return OptionValue(std::move(text));
  }

  // A number without a unit is one of seconds; a time to live of 0 or less has no end.
  static Result<OptionValue> seconds_or_text(const OptionRow& row, const std::string& text) {
    char* end = nullptr;
    const double seconds = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') return OptionValue(text);
    constexpr double kMostSeconds = 3650.0 * 86400;
    if (!std::isfinite(seconds) || seconds > kMostSeconds) return refuse(row, "`" + text + "`");
    if (seconds <= 0) {
      if (row.name != "buffer_ttl_seconds") return refuse(row, "`" + text + "`");
      return OptionValue(std::string("0s"));
    }
    return OptionValue(format_duration(Duration(std::llround(seconds * 1e9))));
  }

  const PlaceOf& place_;
  LoadedPullOptions loaded_;
};

}  // namespace

std::string PullOptions::pool_device() const {
  if (!memory_pool_device.empty()) return memory_pool_device;
  return protocol == "ascend" ? "npu" : "cpu";
}

const config::OptionTable& pull_option_table() noexcept {
  static constexpr config::OptionTable kTable = {"extra", "STAGELINK_PULL_", kPullRows, {}};
  return kTable;
}

Result<LoadedPullOptions> load_pull_options(const ConfigNode& extra, const PlaceOf& place) {
  return PullOptionsReader(place).read(extra);
}

Status check_pull_options(const PullOptions& options) {
  for (const OptionRow& row : kPullRows) SL_TRY(config::check_value(row, &options));
  const bool is_ascend = options.protocol == "ascend";
  const bool is_npu = options.pool_device() != "cpu";
  if (is_ascend && !is_npu) {
    return Status(Reason::kUnsupported,
                  "memory_pool_device: `cpu` does not go with `protocol: ascend`, which reads "
                  "registered memory of NPUs; use `npu`, or another `protocol`");
  }
  if (!is_ascend && is_npu) {
    return Status(Reason::kUnsupported,
                  fmt::format("memory_pool_device: `{}` needs `protocol: ascend`; use `cpu` with "
                              "`protocol: {}`",
                              options.memory_pool_device, options.protocol));
  }
  if (options.compat_030 && !options.secret_file.empty()) {
    return Status(Reason::kUnsupported,
                  "compat_030: peers of vLLM-Omni 0.30 cannot prove that they hold the secret; "
                  "leave `compat_030` or `secret_file` out");
  }
  return {};
}

std::string pull_options_text() {
  const PullOptions defaults;
  return config::options_tables(pull_option_table(), &defaults);
}

}  // namespace stagelink::pull
