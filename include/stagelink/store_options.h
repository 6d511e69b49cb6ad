#pragma once

#include <cstdint>
#include <string>

#include "stagelink/engine_options.h"

namespace stagelink {

enum class StoreBackend : uint8_t {
  kShm,       // An arena of shared memory on this host. Needs no server.
  kYuanrong,  // The Yuanrong Datasystem, through a broker process.
};

// What happens to a put that finds no space.
enum class EvictionMode : uint8_t {
  kNone,   // It waits until its deadline.
  kEvict,  // The oldest sealed objects without a view give way, and are counted.
};

// See docs/options.md for the names in configuration files.
struct ArenaOptions {
  // Processes of one user that name the same one share the arena. 1 to 64 of [A-Za-z0-9._-].
  std::string name = "default";
  std::string directory = "/dev/shm";  // A tmpfs. Named arenas of other directories are others.
  // Bytes for objects, reserved when the arena is made. 0: only an arena that is there already,
  // whatever its size.
  uint64_t capacity = uint64_t{1} << 30;
  uint32_t max_objects = 65'536;  // Those that are being written or held only by views included.
  bool keep = false;              // The last process to close leaves the arena behind.
  Duration lock_timeout = std::chrono::seconds(1);  // For a process that is stopped inside.
};

// See yuanrong.md and the SDK's ConnectOptions for what the worker makes of them.
struct YuanrongOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 35001;
  Duration connect_timeout = std::chrono::seconds(5);
  Duration request_timeout = std::chrono::seconds(5);
  bool exclusive_connection = true;  // At most 128 for a worker; the rest share one.
  bool cross_node_connection = false;
  std::string write_mode = "NONE_L2_CACHE_EVICT";
  uint64_t chunk_bytes = uint64_t{64} << 20;  // Larger values are split. 16 MiB to 64 MiB.
  Duration health_interval = std::chrono::milliseconds(500);
  // Where misses ask which other workers there are, "host:port": etcd or the metastore. Empty: only
  // `ring` is watched.
  std::string etcd_address;
  std::string ring;  // The other workers, "host:port,host:port", beside those that etcd names.
  // How long a worker counts that etcd names no longer: the workers' own --node_dead_timeout_s.
  Duration ring_timeout = std::chrono::seconds(300);
  std::string tenant_id;
  // Files that hold one secret each, mode 0600. Empty: not used.
  std::string access_key_file;
  std::string secret_key_file;
  std::string client_public_key_file;
  std::string client_private_key_file;
  std::string server_public_key_file;
  std::string token_file;
  std::string sdk_path;  // The folder yr/datasystem of the wheel. Empty: searched for.
};

struct StoreOptions {
  StoreBackend backend = StoreBackend::kShm;
  EvictionMode eviction = EvictionMode::kNone;
  Duration ttl = Duration::zero();  // For puts that name none. Zero: for ever.
  ArenaOptions arena;
  YuanrongOptions yuanrong;
};

}  // namespace stagelink
