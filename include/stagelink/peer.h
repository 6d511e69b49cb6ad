#pragma once

#include <memory>
#include <span>
#include <string>

#include "stagelink/region.h"
#include "stagelink/session.h"

namespace stagelink {

namespace engine {
class PeerState;
}

enum class PeerPhase : uint8_t { kConnected, kUnreachable, kLost };

// Another engine, connected. It is one life of one process: after peer_lost, connect again.
//
// Thread-safety: all methods may run at the same time.
class Peer {
 public:
  Peer(Peer&&) noexcept;
  Peer& operator=(Peer&&) noexcept;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  InstanceId instance() const noexcept;
  const std::string& name() const noexcept;
  // kUnreachable: no heartbeat for heartbeat_misses intervals (a stopped process); it may come
  // back.
  PeerPhase phase() const noexcept;

  // Errors: not_registered, superseded, incompatible (a descriptor of another instance names both),
  // peer_lost, timed_out.
  Result<Session> session(std::span<const Region* const> local, std::span<const RegionDesc> remote);
  // Remote offsets are absolute addresses, resolved in the owner's region table; each range must
  // lie inside one registration.
  Result<Session> session_by_address(std::span<const Region* const> local);

  // Sends a message. Returns once it is queued at the receiver (or, with `after`, at the transfer).
  // Errors: limit (too_large), busy (ring_full), peer_lost, unreachable.
  Status notify(std::span<const std::byte> payload);
  Status notify(std::span<const std::byte> payload, const Transfer& after);

  Status close();

 private:
  friend class Engine;
  explicit Peer(std::shared_ptr<engine::PeerState> state) noexcept;
  template <typename Create>
  Result<Session> open_session(std::span<const Region* const> local, Create&& create);
  std::shared_ptr<engine::PeerState> state_;
};

}  // namespace stagelink
