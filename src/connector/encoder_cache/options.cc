#include "connector/encoder_cache/options.h"

#include <limits>
#include <vector>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/runtime_dir.h"
#include "base/text.h"
#include "config/option_loader.h"
#include "connector/pull/messages/stamp.h"

namespace stagelink::encoder_cache {
namespace {

using config::field_of;
using config::OptionRow;
using O = CacheOptions;
using T = config::OptionType;

constexpr int64_t kCacheOneMs = 1'000'000;
constexpr int64_t kCacheLongest = Duration(Deadline::kLongest).count();
constexpr int64_t kCacheDay = 24 * 3600 * 1000 * kCacheOneMs;
constexpr int64_t kCacheMaxText = 4095;

constexpr std::string_view kCachePush = "Pull or push";
constexpr std::string_view kCacheRegistry = "Registry";
constexpr std::string_view kCacheAddresses = "Addresses";
constexpr std::string_view kCacheMoving = "Moving";
constexpr std::string_view kCacheBounds = "Bounds";

Status check_cache_protocol(std::string_view text) {
  for (const std::string_view known : {"rdma", "auto", "shm", "cma", "unix", "tcp"}) {
    if (text == known) return {};
  }
  return Status(Reason::kInvalidArgument,
                "it is `rdma` or `auto` (the engine chooses), `shm`, `cma`, `unix` or `tcp`");
}

Status check_cache_mode(std::string_view text) {
  if (text == "pull" || text == "push") return {};
  return Status(Reason::kInvalidArgument,
                "it is `pull` (consumers ask a registry) or `push` (requests say who gets it)");
}

constexpr OptionRow kCacheRows[] = {
    {"ec_mode",
     T::kString,
     kCachePush,
     "`pull`: consumers find embeddings at a registry. `push`: requests name the consumer, which "
     "gets them as soon as they are made. The same on both sides.",
     field_of<&O::ec_mode>,
     1,
     8,
     {},
     check_cache_mode},
    {"push_wait_timeout", T::kDuration, kCachePush,
     "How long a request waits for what it was told will be pushed, before it is encoded here.",
     field_of<&O::push_wait_timeout>, kCacheOneMs, kCacheDay},
    {"reservation_ttl", T::kDuration, kCachePush,
     "How long a reservation is kept without a sign of life of its producer, which gives one every "
     "third of it.",
     field_of<&O::reservation_ttl>, 10 * kCacheOneMs, kCacheDay},

    {"remote_registry_url", T::kString, kCacheRegistry,
     "Where consumers ask who has an embedding, as `http://host:port`. A producer with it "
     "publishes "
     "there; one without runs a registry of its own.",
     field_of<&O::remote_registry_url>, 0, kCacheMaxText},
    {"registry_host", T::kString, kCacheRegistry,
     "Where a producer's own registry listens. Empty: at `host`.", field_of<&O::registry_host>, 0,
     255},
    {"registry_http_port", T::kInteger, kCacheRegistry,
     "Port of a producer's own registry; 0: any free one.", field_of<&O::registry_http_port>, 0,
     65'535},
    {"registry_lease", T::kDuration, kCacheRegistry,
     "How long a registry shows what a producer published after its last sign of life.",
     field_of<&O::registry_lease>, 1000 * kCacheOneMs, kCacheLongest},
    {"registry_timeout", T::kDuration, kCacheRegistry,
     "How long an answer of the registry is waited for.", field_of<&O::registry_timeout>,
     kCacheOneMs, kCacheLongest},
    {"registry_wait", T::kDuration, kCacheRegistry,
     "How long a request waits for an embedding that nobody has published, before it is encoded "
     "here.",
     field_of<&O::registry_wait>, 0, kCacheLongest},

    {"host", T::kString, kCacheAddresses,
     "Where it listens. `auto`: the address of `interface`, or that of the default route.",
     field_of<&O::host>, 1, 255},
    {"advertise_host", T::kString, kCacheAddresses, "Told to peers. Empty: where it listens.",
     field_of<&O::advertise_host>, 0, 255},
    {"interface", T::kString, kCacheAddresses, "Whose address `host: auto` takes.",
     field_of<&O::interface>, 0, 15},
    {"zmq_port", T::kInteger, kCacheAddresses, "Port for control messages; 0: any free one.",
     field_of<&O::zmq_port>, 0, 65'535},
    {"rpc_port", T::kInteger, kCacheAddresses, "Port of the engine; 0: any free one.",
     field_of<&O::rpc_port>, 0, 65'535},
    {"secret_file", T::kString, kCacheAddresses,
     "A file of mode 0600. Only who holds the same secret is answered.", field_of<&O::secret_file>,
     0, kCacheMaxText},
    {"runtime_dir", T::kString, kCacheAddresses, "Folder of sockets; empty: as the engine's.",
     field_of<&O::runtime_dir>, 0, kMaxRuntimeDirBytes},

    {"mooncake_protocol",
     T::kString,
     kCacheMoving,
     "`rdma` and `auto` leave the choice to the engine; `shm`, `cma`, `unix` and `tcp` are that "
     "transport alone.",
     field_of<&O::mooncake_protocol>,
     1,
     16,
     {},
     check_cache_protocol},
    {"pull_timeout", T::kDuration, kCacheMoving,
     "How long getting an embedding may take in all, before it is encoded here.",
     field_of<&O::pull_timeout>, kCacheOneMs, kCacheLongest},
    {"lease_timeout", T::kDuration, kCacheMoving,
     "How long a consumer may hold an embedding in place at its producer.",
     field_of<&O::lease_timeout>, 10 * kCacheOneMs, kCacheDay},
    {"space_timeout", T::kDuration, kCacheMoving, "How long a full pool is waited for.",
     field_of<&O::space_timeout>, kCacheOneMs, kCacheDay},
    {"control_timeout", T::kDuration, kCacheMoving,
     "How long an answer of a peer is waited for, before another producer is asked.",
     field_of<&O::control_timeout>, kCacheOneMs, kCacheDay},
    {"load_threads", T::kInteger, kCacheMoving,
     "Batches of embeddings that a consumer's scheduler gets at the same time.",
     field_of<&O::load_threads>, 1, 64},
    {"checksum", T::kBool, kCacheMoving, "Prove each embedding by a checksum.",
     field_of<&O::checksum>, 0, 0},
    {"seed_peers", T::kBool, kCacheMoving,
     "Speak with peers that know no leases: answer their message `pull`, and send it to theirs. "
     "Off with a `secret_file`.",
     field_of<&O::seed_peers>, 0, 0},

    {"buffer_size", T::kBytes, kCacheBounds,
     "Memory for embeddings. vLLM says it as `ec_buffer_size`.", field_of<&O::buffer_size>, 1 << 16,
     std::numeric_limits<int64_t>::max() / 2},
    {"huge_pages", T::kEffort, kCacheBounds, "Back that memory with huge pages.",
     field_of<&O::huge_pages>, 0, 0},
    {"max_entries", T::kInteger, kCacheBounds, "Embeddings that are kept at a time.",
     field_of<&O::max_entries>, 1, 400'000},
    {"identity", T::kString, kCacheBounds,
     "What must be the same at producer and consumer, in words: model, dtype, width. The host says "
     "it.",
     field_of<&O::identity>, 0, kCacheMaxText},
};

Status set_entry(const config::ConfigEntry& entry, CacheOptions& options) {
  const config::OptionTable& table = cache_option_table();
  const std::string& name = entry.key.text;
  if (table.find(name) == nullptr) {
    std::vector<std::string_view> names;
    for (const OptionRow& row : table.rows) names.push_back(row.name);
    const std::string_view near = nearest_name(name, names);
    if (near.empty()) return {};
    return Status(Reason::kUnknownKey, fmt::format("unknown option `{}`; did you mean `{}`?",
                                                   escape_control(name.substr(0, 80)), near));
  }
  if (entry.value.kind != config::ConfigNode::Kind::kScalar || entry.value.is_null()) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("{}: expected {}", name, config::expected_text(*table.find(name))));
  }
  return config::set_named(table, &options, name, entry.value.text);
}

}  // namespace

const config::OptionTable& cache_option_table() noexcept {
  static constexpr config::OptionTable kTable = {
      "ec_connector_extra_config", "STAGELINK_EC_", kCacheRows, {}};
  return kTable;
}

Result<CacheOptions> load_cache_options(const config::ConfigNode& extra) {
  CacheOptions options;
  for (const config::ConfigEntry& entry : extra.entries) SL_TRY(set_entry(entry, options));
  if (!options.secret_file.empty()) options.seed_peers = false;
  return options;
}

std::string cache_options_text() {
  const CacheOptions defaults;
  return config::options_tables(cache_option_table(), &defaults);
}

pull::PullOptions pull_options_of(const CacheOptions& options, pull::Role role) {
  pull::PullOptions pull;
  pull.host = options.host;
  pull.advertise_host = options.advertise_host;
  pull.interface = options.interface;
  pull.zmq_port = options.zmq_port;
  pull.rpc_port = options.rpc_port;
  pull.secret_file = options.secret_file;
  pull.runtime_dir = options.runtime_dir;
  pull.protocol = options.mooncake_protocol == "rdma" ? "auto" : options.mooncake_protocol;
  pull.memory_pool_size = options.buffer_size;
  pull.huge_pages = options.huge_pages;
  pull.role = role;
  pull.checksum = options.checksum;
  pull.buffer_ttl = Duration::zero();
  pull.claim_timeout = options.lease_timeout;
  pull.ask_timeout = options.control_timeout;
  pull.put_timeout = options.space_timeout;
  // Retired ones count until their readers are done; one tells the identity.
  pull.max_offers = 2 * options.max_entries + 64;
  return pull;
}

std::string offer_key(std::string_view identity, std::string_view mm_hash) {
  return fmt::format("{:016x}:{}", pull::key_digest(identity), mm_hash);
}

std::string hand_on_key(std::string_view identity, std::string_view mm_hash, uint64_t turn) {
  return fmt::format("{}@{}", offer_key(identity, mm_hash), turn);
}

}  // namespace stagelink::encoder_cache
