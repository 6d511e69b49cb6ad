#include "config/engine_config.h"

#include <array>
#include <limits>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "base/runtime_dir.h"
#include "config/store_config.h"

namespace stagelink::config {
namespace {

using O = EngineOptions;
using T = OptionType;

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kGiB = 1 << 30;
constexpr int64_t kMs = 1'000'000;
constexpr int64_t kMinute = 60'000 * kMs;
constexpr int64_t kLongest = Duration(Deadline::kLongest).count();
constexpr int64_t kMillion = 1'000'000;

constexpr std::array<std::string_view, 4> kTransports = {"shm", "cma", "unix", "tcp"};

Status check_bind(std::string_view text) {
  return text == "auto" ? Status() : parse_endpoint(text).status();
}

// `advertise` may leave the port out.
Status check_advertise(std::string_view text) {
  const Status with_port = parse_endpoint(text).status();
  if (with_port.ok() || text.find(' ') != std::string_view::npos) return with_port;
  return parse_endpoint(std::string(text) + ":1").ok() ? Status() : with_port;
}

constexpr std::string_view kIdentity = "Identity and addresses";
constexpr std::string_view kData = "Data path";
constexpr std::string_view kBounds = "Bounds";
constexpr std::string_view kDeadlines = "Deadlines";
constexpr std::string_view kMemory = "Memory of allocate()";
constexpr std::string_view kFaults = "Fault injection";

constexpr OptionRow kRows[] = {
    {"name", T::kString, kIdentity,
     "What peers, logs and metrics call this engine. Empty: `engine-<pid>`.", field_of<&O::name>, 0,
     128},
    {"bind",
     T::kString,
     kIdentity,
     "Address that peers connect to, `host:port`; port 0 takes any free one. `auto` or `auto:port` "
     "takes the first address of `interface`.",
     field_of<&O::bind>,
     1,
     255,
     {},
     check_bind},
    {"interface", T::kString, kIdentity,
     "Network interface whose address `bind: auto` takes. Empty: the first that is up and is not "
     "loopback.",
     field_of<&O::interface>, 0, 15},
    {"advertise",
     T::kString,
     kIdentity,
     "Address that peers are told, `host` or `host:port`. Empty: the one that was bound.",
     field_of<&O::advertise>,
     0,
     255,
     {},
     check_advertise},
    {"runtime_dir", T::kString, kIdentity,
     "Directory of the sockets and counters. Empty: `$XDG_RUNTIME_DIR/stagelink`, else "
     "`/dev/shm/stagelink-<uid>`, else `/tmp/stagelink-<uid>`.",
     field_of<&O::runtime_dir>, 0, kMaxRuntimeDirBytes},
    {"secret_file", T::kString, kIdentity,
     "File of 32 bytes to 4 KiB, mode 0600: peers must prove that they hold the same bytes before "
     "they learn or get anything. Empty: no proof is asked for.",
     field_of<&O::secret_file>, 0, 4095},
    {"transports", T::kList, kIdentity, "Transports that may be used, in order of preference.",
     field_of<&O::transports>, 1, kTransports.size(), kTransports},

    {"inline_bytes", T::kBytes, kData,
     "A batch up to this size is copied by the thread that submits it.", field_of<&O::inline_bytes>,
     0, kGiB},
    {"slice_bytes", T::kBytes, kData,
     "Batches are cut into slices of this size: the unit of sharing the work, of cancelling and of "
     "looking at deadlines.",
     field_of<&O::slice_bytes>, 4 * kKiB, kGiB},
    {"copy_threads", T::kInteger, kData,
     "Threads that copy beside those that wait. 0: only the waiter copies.",
     field_of<&O::copy_threads>, 0, 64},
    {"streaming_min_bytes", T::kBytes, kData,
     "Copies of at least this size bypass the cache. 0: calibrated for this machine.",
     field_of<&O::streaming_min_bytes>, 0, kAny},
    {"cma_min_run", T::kBytes, kData,
     "Memory that cannot be mapped goes by `cma` if the pieces of a batch, neighbours merged, are "
     "at "
     "least this long on average, else over a socket.",
     field_of<&O::cma_min_run>, 0, kGiB},
    {"allow_ptrace", T::kBool, kData,
     "Allow every process of this user to use `cma` on this one, where `kernel.yama.ptrace_scope` "
     "is "
     "1 (`PR_SET_PTRACER_ANY`; lets them attach debuggers as well).",
     field_of<&O::allow_ptrace>, 0, 0},
    {"stream_stripes", T::kInteger, kData,
     "Data connections to one peer for memory that cannot be mapped; opened as they are needed.",
     field_of<&O::stream_stripes>, 1, 16},
    {"stripe_min_bytes", T::kBytes, kData,
     "A batch of at least this size is spread over all of them; a smaller one takes the idlest.",
     field_of<&O::stripe_min_bytes>, 4 * kKiB, kAny},
    {"checksum", T::kBool, kData,
     "Each frame on a socket ends in its XXH3 sum, if either side asks for it. Mapped memory has "
     "none.",
     field_of<&O::checksum>, 0, 0},

    {"max_regions", T::kInteger, kBounds, "Regions that may be registered at a time.",
     field_of<&O::max_regions>, 1, 1 << 24},
    {"max_peers", T::kInteger, kBounds, "Peers that may be connected at a time.",
     field_of<&O::max_peers>, 1, 65536},
    {"max_transfers", T::kInteger, kBounds, "Batches in flight at a time, for the whole engine.",
     field_of<&O::max_transfers>, 1, 65536},
    {"max_ranges", T::kInteger, kBounds, "Ranges in one batch.", field_of<&O::max_ranges>, 1,
     1 << 20},
    {"max_notification_bytes", T::kBytes, kBounds, "Payload of one notification.",
     field_of<&O::max_notification_bytes>, 0, 8 * kKiB},

    {"connect_timeout", T::kDuration, kDeadlines,
     "How long `connect` waits for a peer, unless the call says otherwise.",
     field_of<&O::connect_timeout>, kMs, kLongest},
    {"transfer_timeout", T::kDuration, kDeadlines,
     "Deadline of a batch, unless the call says otherwise.", field_of<&O::transfer_timeout>, kMs,
     kLongest},
    {"deregister_timeout", T::kDuration, kDeadlines,
     "How long deregistering waits for a peer that is inside the memory.",
     field_of<&O::deregister_timeout>, kMs, kLongest},
    {"heartbeat_interval", T::kDuration, kDeadlines, "Time between two heartbeats to a peer.",
     field_of<&O::heartbeat_interval>, 10 * kMs, kMinute},
    {"heartbeat_misses", T::kInteger, kDeadlines,
     "Heartbeats that may be missing before a peer counts as unreachable.",
     field_of<&O::heartbeat_misses>, 1, 1000},

    {"pin", T::kEffort, kMemory, "Lock the pages in memory (`mlock`).", field_of<&O::pin>, 0, 0},
    {"huge_pages", T::kEffort, kMemory, "Back the memory with huge pages.",
     field_of<&O::huge_pages>, 0, 0},
    {"prefault", T::kEffort, kMemory,
     "Reserve and touch all pages at once, so that a shortage is an error here and not a signal "
     "later.",
     field_of<&O::prefault>, 0, 0},
    {"numa_node", T::kInteger, kMemory, "Node that the pages come from. -1: the kernel's choice.",
     field_of<&O::numa_node>, -1, 1023},

    {"fault_seed", T::kInteger, kFaults, "Seed of all injected faults, for tests. 0: no faults.",
     field_of<&O::fault_seed>, 0, kAny},
    {"fault_drop_ppm", T::kInteger, kFaults, "Slices or frames of a million that vanish.",
     field_of<&O::fault_drop_ppm>, 0, kMillion},
    {"fault_delay_ppm", T::kInteger, kFaults, "Slices or frames of a million that come late.",
     field_of<&O::fault_delay_ppm>, 0, kMillion},
    {"fault_cut_ppm", T::kInteger, kFaults,
     "Slices or frames of a million at which the connection is cut.", field_of<&O::fault_cut_ppm>,
     0, kMillion},
    {"fault_flip_ppm", T::kInteger, kFaults, "Slices or frames of a million with one bit flipped.",
     field_of<&O::fault_flip_ppm>, 0, kMillion},
};

}  // namespace

const OptionTable& engine_option_table() noexcept {
  static constexpr OptionTable kTable = {"engine", "STAGELINK_", kRows, {}};
  return kTable;
}

Result<EngineOptions> load_engine_options(const ConfigSources& sources) {
  EngineOptions options;
  SL_TRY(load_options(engine_option_table(), sources, &options));
  return options;
}

Status set_option(EngineOptions& options, std::string_view name, std::string_view text) {
  return set_named(engine_option_table(), &options, name, std::string(text));
}

Status set_option_value(EngineOptions& options, std::string_view name, const OptionValue& value) {
  return set_named(engine_option_table(), &options, name, value);
}

Status check_engine_options(const EngineOptions& options) {
  for (const OptionRow& row : engine_option_table().rows) SL_TRY(check_value(row, &options));
  return {};
}

std::string to_text(const EngineOptions& options) {
  return options_text(engine_option_table(), &options);
}

std::string engine_options_page() {
  const EngineOptions defaults;
  const StoreOptions store_defaults;
  return options_page(engine_option_table(), &defaults) +
         options_tables(store_option_table(), &store_defaults);
}

}  // namespace stagelink::config
