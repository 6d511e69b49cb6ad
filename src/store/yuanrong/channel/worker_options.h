#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagelink/result.h"
#include "stagelink/store_options.h"

namespace stagelink::store::yuanrong {

// What a client asks its broker to connect with. Secrets are the contents of the files, and travel
// over the UNIX socket alone: never in an argument, a log or a file of ours.
struct WorkerOptions {
  std::string host;
  uint16_t port = 0;
  uint32_t connect_timeout_ms = 0;
  uint32_t request_timeout_ms = 0;
  uint32_t health_interval_ms = 0;
  uint32_t ring_timeout_ms = 0;
  bool exclusive = false;
  bool cross_node = false;
  std::string tenant_id;
  std::string access_key;
  std::string secret_key;
  std::string client_public_key;
  std::string client_private_key;
  std::string server_public_key;
  std::string token;
  std::string etcd_address;
  std::string ring;

  ~WorkerOptions();  // Wipes the secrets.
  WorkerOptions() = default;
  WorkerOptions(const WorkerOptions&) = default;
  WorkerOptions(WorkerOptions&&) noexcept = default;
  WorkerOptions& operator=(const WorkerOptions&) = default;
  WorkerOptions& operator=(WorkerOptions&&) noexcept = default;

  // Equal for equal connections; nothing can be read from it.
  std::string digest() const;
};

// Reads the files that the options name; where they name none, the variables
// STAGELINK_YUANRONG_ACCESS_KEY, ..._SECRET_KEY, ..._CLIENT_PUBLIC_KEY, ..._CLIENT_PRIVATE_KEY,
// ..._SERVER_PUBLIC_KEY and ..._TOKEN. Errors: those of read_secret_file; invalid_argument (one key
// of a pair without the other, a key with a line break, a bad ring).
Result<WorkerOptions> read_worker_options(const YuanrongOptions& options);

std::vector<std::byte> encode_worker_options(const WorkerOptions& options);
// Errors: corrupt (frame); incompatible (version).
Result<WorkerOptions> decode_worker_options(std::span<const std::byte> bytes);

// "a:1,b:2" as endpoints. Errors: invalid_argument names the entry.
Result<std::vector<std::string>> parse_ring(const std::string& ring);

}  // namespace stagelink::store::yuanrong
