#include "connector/store/options.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/log.h"
#include "base/text.h"
#include "config/option_loader.h"
#include "config/store_config.h"
#include "connector/omni_config/typed_value.h"
#include "connector/omni_config/variables.h"

namespace stagelink::store_connector {
namespace {

using config::ConfigEntry;
using config::ConfigNode;
using config::field_of;
using config::OptionRow;
using config::OptionValue;
using C = ConnectorOptions;
using T = config::OptionType;

constexpr int64_t kOneMs = 1'000'000;
constexpr int64_t kLongestWait = Duration(Deadline::kLongest).count();
constexpr int64_t kAnyCount = 1'000'000;

constexpr std::string_view kGetting = "Getting";
constexpr std::string_view kPutting = "Putting";
constexpr std::string_view kPlace = "Place";

Status check_namespace(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (std::all_of(text.begin(), text.end(), allowed)) return {};
  return Status(Reason::kInvalidArgument, "it may hold letters, digits, `.`, `_` and `-`");
}

Status check_wire(std::string_view text) {
  if (text == "compat" || text == "fast") return {};
  return Status(Reason::kInvalidArgument, "it is `compat` or `fast`");
}

constexpr OptionRow kConnectorRows[] = {
    {"get_sub_timeout_ms", T::kInteger, kGetting,
     "How long `get` waits for the object, in milliseconds. 0: until it is there, at most "
     "`max_wait`. "
     "-1, as without the key: it looks once, so that a loop over many keys never stalls. "
     "`get_with_deadline` has its own deadline.",
     field_of<&C::get_sub_timeout_ms>, -1, std::numeric_limits<int32_t>::max()},
    {"max_wait", T::kDuration, kGetting, "The longest wait of `get_sub_timeout_ms: 0`.",
     field_of<&C::max_wait>, kOneMs, kLongestWait},
    {"delete_consumed", T::kBool, kGetting,
     "Delete an object when it has been got: one consumer for each put. Off: it lives until its "
     "time "
     "has passed or `cleanup`.",
     field_of<&C::delete_consumed>, 0, 0},
    {"copy", T::kBool, kGetting,
     "Give tensors and arrays memory of their own, which may be written to, instead of views of "
     "the "
     "store's.",
     field_of<&C::copy>, 0, 0},
    {"view_min_bytes", T::kBytes, kGetting,
     "Payloads below this size are copied in any case, so that what lives long does not hold the "
     "store's memory for a few bytes.",
     field_of<&C::view_min_bytes>, 0, std::numeric_limits<int64_t>::max()},
    {"revive", T::kBool, kGetting,
     "Make objects of vLLM of dictionaries that look like them, as vLLM-Omni's serializer does.",
     field_of<&C::revive>, 0, 0},

    {"put_timeout", T::kDuration, kPutting,
     "How long `put` waits for space, for its window and for its turn.", field_of<&C::put_timeout>,
     kOneMs, kLongestWait},
    {"window_size", T::kInteger, kPutting,
     "Objects of one edge that this sender has put and nobody has consumed; `put` waits at the "
     "bound. "
     "-1: any number.",
     field_of<&C::window_size>, -1, kAnyCount},
    {"max_inflight", T::kInteger, kPutting,
     "Puts of one edge that run at the same time; others wait. -1: any number.",
     field_of<&C::max_inflight>, -1, kAnyCount},
    {"wire",
     T::kString,
     kPutting,
     "The form of payloads: `fast`, aligned, keeping tuples and sets; `compat`, the bytes of "
     "vLLM-Omni's serializer. Both are read.",
     field_of<&C::wire>,
     1,
     16,
     {},
     check_wire},
    {"checksum", T::kBool, kPutting, "Put a checksum with each payload of the form `fast`.",
     field_of<&C::checksum>, 0, 0},

    {"namespace",
     T::kString,
     kPlace,
     "The arena that both ends meet in, with `backend: shm`. Default: a digest of `extra`, so that "
     "pipelines of different configuration never meet; two runs of one configuration at the same "
     "time "
     "need two names.",
     field_of<&C::name_space>,
     0,
     64,
     {},
     check_namespace},
    {"stage_id", T::kInteger, kPlace, "The stage that the connector belongs to; the host adds it.",
     field_of<&C::stage_id>, -1, kAnyCount},
};

// What the host adds for connectors of other kinds.
constexpr std::array<std::string_view, 9> kHostKeys = {
    "role",        "from_stage",      "to_stage", "zmq_port", "rpc_port",
    "sender_host", "sender_zmq_port", "outgoing", "type"};

// Reads one `extra`.
class OptionsReader {
 public:
  explicit OptionsReader(const PlaceOf& place) : place_(place) {}

  Result<ConnectorOptions> read(const ConfigNode& extra) {
    for (const ConfigEntry& entry : extra.entries) {
      const Status status = read_entry(entry);
      if (!status.ok()) return placed(entry.value, status);
    }
    for (const auto& [name, bound] : {std::pair("window_size", options_.window_size),
                                      std::pair("max_inflight", options_.max_inflight)}) {
      if (bound != 0) continue;
      return placed(
          extra.find(name)->value,
          Status(Reason::kInvalidArgument,
                 fmt::format("{}: 0 would let nothing through; -1 is without a bound", name)));
    }
    if (extra.find("backend") == nullptr && extra.find("host") != nullptr) {
      options_.store.backend = StoreBackend::kYuanrong;
    }
    if (options_.name_space.empty()) options_.name_space = omni::default_namespace(extra);
    if (extra.find("name") == nullptr) options_.store.arena.name = options_.name_space;
    return std::move(options_);
  }

 private:
  Status placed(const ConfigNode& where, const Status& status) const {
    if (place_ == nullptr) return status;
    return Status(status.reason(), fmt::format("{}: {}", place_(where), status.message()));
  }

  Status read_entry(const ConfigEntry& entry) {
    const std::string& name = entry.key.text;
    if (std::ranges::find(kHostKeys, name) != kHostKeys.end()) return {};
    const OptionRow* row = connector_option_table().find(name);
    void* fields = &options_;
    if (row == nullptr) {
      row = config::store_option_table().find(name);
      fields = &options_.store;
    }
    if (row == nullptr) return refuse_near(name);
    SL_ASSIGN(const OptionValue value, value_of(*row, entry.value));
    return config::set_value(*row, fields, value);
  }

  static Status refuse_near(std::string_view name) {
    std::vector<std::string_view> names;
    for (const OptionRow& row : connector_option_table().rows) names.push_back(row.name);
    for (const OptionRow& row : config::store_option_table().rows) names.push_back(row.name);
    const std::string_view near = nearest_name(name, names);
    if (near.empty()) return {};
    return Status(Reason::kUnknownKey, fmt::format("unknown option `{}`; did you mean `{}`?",
                                                   escape_control(name.substr(0, 80)), near));
  }

  static Result<OptionValue> value_of(const OptionRow& row, const ConfigNode& node) {
    const auto refuse = [&row](std::string_view found) {
      return Status(Reason::kInvalidArgument, fmt::format("{}: expected {}, found {}", row.name,
                                                          config::expected_text(row), found));
    };
    if (node.kind != ConfigNode::Kind::kScalar) return refuse("a list or a map");
    if (node.is_null()) return refuse("no value; leave the key out for the default");
    // Numbers and truths of JSON have their type; texts and YAML get that of the row.
    if (node.typed && !node.quoted) {
      const omni::TypedValue value = omni::typed_value(node);
      if (const bool* truth = std::get_if<bool>(&value)) return OptionValue(*truth);
      if (const int64_t* whole = std::get_if<int64_t>(&value)) return OptionValue(*whole);
      return refuse("`" + node.text + "`");
    }
    SL_ASSIGN(std::string text, omni::expand_variable(node.text));
    return OptionValue(std::move(text));
  }

  const PlaceOf& place_;
  ConnectorOptions options_;
};

}  // namespace

ConnectorOptions::ConnectorOptions() { store.ttl = std::chrono::minutes(20); }

Duration ConnectorOptions::get_wait() const noexcept {
  if (get_sub_timeout_ms < 0) return Duration::zero();
  if (get_sub_timeout_ms == 0) return max_wait;
  return std::chrono::milliseconds(get_sub_timeout_ms);
}

const config::OptionTable& connector_option_table() noexcept {
  static constexpr config::OptionTable kTable = {
      "extra", "STAGELINK_CONNECTOR_", kConnectorRows, {}};
  return kTable;
}

Result<ConnectorOptions> load_connector_options(const ConfigNode& extra, const PlaceOf& place) {
  return OptionsReader(place).read(extra);
}

std::string connector_options_text() {
  const ConnectorOptions defaults;
  return config::options_tables(connector_option_table(), &defaults);
}

}  // namespace stagelink::store_connector
