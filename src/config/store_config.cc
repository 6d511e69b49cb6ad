#include "config/store_config.h"

#include <array>
#include <limits>

#include "base/deadline.h"

namespace stagelink::config {
namespace {

using S = StoreOptions;
using A = ArenaOptions;
using Y = YuanrongOptions;
using T = OptionType;

constexpr int64_t kStoreMs = 1'000'000;
constexpr int64_t kStoreMiB = 1 << 20;
constexpr int64_t kStoreLongest = Duration(Deadline::kLongest).count();

constexpr std::array<std::string_view, 2> kBackends = {"shm", "yuanrong"};
constexpr std::array<std::string_view, 2> kEvictionModes = {"none", "evict"};

Status check_arena_name(std::string_view text) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (text.find_first_not_of(kLetters) == std::string_view::npos) return {};
  return Status(Reason::kInvalidArgument, "it may hold letters, digits, `.`, `_` and `-`");
}

Status check_directory(std::string_view text) {
  if (text.front() == '/') return {};
  return Status(Reason::kInvalidArgument, "it must begin with `/`");
}

Status check_write_mode(std::string_view text) {
  for (const std::string_view mode :
       {"NONE_L2_CACHE", "WRITE_THROUGH_L2_CACHE", "WRITE_BACK_L2_CACHE", "NONE_L2_CACHE_EVICT"}) {
    if (text == mode) return {};
  }
  return Status(Reason::kInvalidArgument,
                "there are NONE_L2_CACHE, WRITE_THROUGH_L2_CACHE, WRITE_BACK_L2_CACHE and "
                "NONE_L2_CACHE_EVICT");
}

constexpr std::string_view kAll = "Store";
constexpr std::string_view kArena = "Store: the arena (`backend: shm`)";
constexpr std::string_view kYuanrong = "Store: Yuanrong Datasystem (`backend: yuanrong`)";

constexpr OptionRow kStoreRows[] = {
    {"backend", T::kChoice, kAll,
     "Where objects lie: in memory shared by the processes of this host, or in the Yuanrong "
     "Datasystem.",
     field_of<&S::backend>, 0, 0, kBackends},
    {"eviction", T::kChoice, kAll,
     "What a put does that finds no space: `none` waits until its deadline, `evict` makes the "
     "oldest "
     "objects give way that nobody views.",
     field_of<&S::eviction>, 0, 0, kEvictionModes},
    {"ttl", T::kDuration, kAll, "How long an object lives whose put says nothing. `0s`: for ever.",
     field_of<&S::ttl>, 0, kStoreLongest},

    {"name",
     T::kString,
     kArena,
     "Processes of one user that give the same name share the arena.",
     field_of<&S::arena, &A::name>,
     1,
     64,
     {},
     check_arena_name},
    {"directory",
     T::kString,
     kArena,
     "Where the arena's file lies: a tmpfs.",
     field_of<&S::arena, &A::directory>,
     1,
     1024,
     {},
     check_directory},
    {"capacity", T::kBytes, kArena,
     "Bytes for objects, reserved when the arena is made. 0: only an arena that is there already, "
     "whatever its size.",
     field_of<&S::arena, &A::capacity>, 0, int64_t{1} << 46},
    {"max_objects", T::kInteger, kArena,
     "Objects at a time: sealed, being written, and held only by views. 256 B of memory each.",
     field_of<&S::arena, &A::max_objects>, 1, 1 << 24},
    {"keep", T::kBool, kArena, "The last process to close leaves the arena and its objects behind.",
     field_of<&S::arena, &A::keep>, 0, 0},
    {"lock_timeout", T::kDuration, kArena,
     "How long an operation waits for a process that was stopped inside the arena.",
     field_of<&S::arena, &A::lock_timeout>, kStoreMs, kStoreLongest},

    {"host", T::kString, kYuanrong, "Address of the worker.", field_of<&S::yuanrong, &Y::host>, 1,
     255},
    {"port", T::kInteger, kYuanrong, "Port of the worker.", field_of<&S::yuanrong, &Y::port>, 1,
     65535},
    {"connect_timeout", T::kDuration, kYuanrong, "How long opening the store waits for the worker.",
     field_of<&S::yuanrong, &Y::connect_timeout>, kStoreMs, kStoreLongest},
    {"request_timeout", T::kDuration, kYuanrong, "Deadline of one request to the worker.",
     field_of<&S::yuanrong, &Y::request_timeout>, kStoreMs, kStoreLongest},
    {"exclusive_connection", T::kBool, kYuanrong,
     "A connection of its own for each process: faster, at most 128 for a worker; beyond that they "
     "share one.",
     field_of<&S::yuanrong, &Y::exclusive_connection>, 0, 0},
    {"cross_node_connection", T::kBool, kYuanrong,
     "Let the SDK go to another worker when its own does not answer.",
     field_of<&S::yuanrong, &Y::cross_node_connection>, 0, 0},
    {"write_mode",
     T::kString,
     kYuanrong,
     "The datasystem's write mode.",
     field_of<&S::yuanrong, &Y::write_mode>,
     1,
     64,
     {},
     check_write_mode},
    {"chunk_bytes", T::kBytes, kYuanrong, "Larger values are split into pieces of this size.",
     field_of<&S::yuanrong, &Y::chunk_bytes>, 16 * kStoreMiB, 64 * kStoreMiB},
    {"health_interval", T::kDuration, kYuanrong, "Time between two looks at the worker's health.",
     field_of<&S::yuanrong, &Y::health_interval>, 10 * kStoreMs, kStoreLongest},
    {"etcd_address", T::kString, kYuanrong,
     "Where a miss asks which other workers there are, `host:port`: etcd or the metastore. Empty: "
     "only `ring` is watched.",
     field_of<&S::yuanrong, &Y::etcd_address>, 0, 255},
    {"ring", T::kString, kYuanrong,
     "The other workers, `host:port,host:port`, beside those that etcd names.",
     field_of<&S::yuanrong, &Y::ring>, 0, 4095},
    {"ring_timeout", T::kDuration, kYuanrong,
     "How long a worker counts that etcd names no longer: the workers' `node_dead_timeout_s`.",
     field_of<&S::yuanrong, &Y::ring_timeout>, 10 * kStoreMs, kStoreLongest},
    {"tenant_id", T::kString, kYuanrong, "Tenant that objects belong to.",
     field_of<&S::yuanrong, &Y::tenant_id>, 0, 255},
    {"access_key_file", T::kString, kYuanrong, "File with the access key, mode 0600.",
     field_of<&S::yuanrong, &Y::access_key_file>, 0, 4095},
    {"secret_key_file", T::kString, kYuanrong, "File with the secret key, mode 0600.",
     field_of<&S::yuanrong, &Y::secret_key_file>, 0, 4095},
    {"client_public_key_file", T::kString, kYuanrong, "File with this side's public Curve key.",
     field_of<&S::yuanrong, &Y::client_public_key_file>, 0, 4095},
    {"client_private_key_file", T::kString, kYuanrong,
     "File with this side's private Curve key, mode 0600.",
     field_of<&S::yuanrong, &Y::client_private_key_file>, 0, 4095},
    {"server_public_key_file", T::kString, kYuanrong, "File with the worker's public Curve key.",
     field_of<&S::yuanrong, &Y::server_public_key_file>, 0, 4095},
    {"token_file", T::kString, kYuanrong, "File with the access token, mode 0600.",
     field_of<&S::yuanrong, &Y::token_file>, 0, 4095},
    {"sdk_path", T::kString, kYuanrong,
     "The folder `yr/datasystem` of the SDK's wheel. Empty: it is searched for.",
     field_of<&S::yuanrong, &Y::sdk_path>, 0, 4095},
};

}  // namespace

const OptionTable& store_option_table() noexcept {
  static constexpr OptionTable kTable = {"store", "STAGELINK_STORE_", kStoreRows, {}};
  return kTable;
}

Result<StoreOptions> load_store_options(const ConfigSources& sources) {
  StoreOptions options;
  SL_TRY(load_options(store_option_table(), sources, &options));
  return options;
}

Status check_store_options(const StoreOptions& options) {
  for (const OptionRow& row : store_option_table().rows) SL_TRY(check_value(row, &options));
  return {};
}

}  // namespace stagelink::config
