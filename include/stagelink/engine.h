#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/engine_options.h"
#include "stagelink/notification.h"
#include "stagelink/peer.h"
#include "stagelink/region.h"
#include "stagelink/result.h"

namespace stagelink {

namespace engine {
class EngineCore;
}

// The endpoint of one process. Regions, peers, sessions and transfers may outlive it: after close()
// they answer invalid_state (closed). After fork() the child's copies answer invalid_state (forked)
// and touch nothing shared; create a new engine in the child.
//
// Thread-safety: all methods may run at the same time.
class Engine {
 public:
  // Binds, then starts one progress thread. Errors: invalid_argument names the option;
  // already_exists (port_in_use); permission; limit (nofile).
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Shareable memory: peers on this host map it and copy directly. `bytes` is rounded up to pages
  // for mapping, not for bounds. Errors: invalid_argument (0 bytes), no_space (shm_full), limit.
  Result<Region> allocate(size_t bytes, const AllocateOptions& options = {});

  // Memory of the caller, who keeps it valid until the region is deregistered. Overlaps with other
  // regions are allowed. Errors: invalid_argument (null, 0 bytes, overflow), limit
  // (too_many_regions).
  Result<Region> register_memory(void* address, size_t bytes, const RegisterOptions& options = {});

  // What a peer passes to connect(): instance, name, host, socket path, address. See
  // wire/engine_desc.h.
  std::vector<std::byte> descriptor() const;
  std::string address() const;  // "host:port" of the hello listener, as advertised.
  InstanceId instance() const noexcept;
  const EngineOptions& options() const noexcept;

  // Errors: invalid_argument, unreachable, timed_out (connect_timeout), incompatible (version),
  // permission (other_user), limit (too_many_peers). Zero timeout means connect_timeout.
  Result<Peer> connect(std::span<const std::byte> descriptor, Duration timeout = Duration::zero());
  Result<Peer> connect(std::string_view host_port, Duration timeout = Duration::zero());

  // Messages that have arrived, oldest first for each peer, at most `max`. Waits up to `timeout`
  // for the first one; an empty answer means none came.
  Result<std::vector<Notification>> notifications(Duration timeout, size_t max = 256);
  // Readable while notifications wait. For event loops; owned by the engine. Drain with
  // notifications(zero) when it is readable.
  Result<int> fileno();

  std::string metrics_text() const;

  // Ends all transfers, tells peers, gives everything back. Idempotent. Bounded by `timeout`.
  // Errors: busy names what still holds memory.
  Status close(Duration timeout = std::chrono::seconds(5));

 private:
  explicit Engine(std::shared_ptr<engine::EngineCore> core) noexcept;
  std::shared_ptr<engine::EngineCore> core_;
};

}  // namespace stagelink
