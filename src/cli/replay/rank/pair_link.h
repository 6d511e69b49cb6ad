#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.h"
#include "cli/replay/rank/pair_message.h"
#include "stagelink/engine.h"

namespace stagelink::cli::replay {

// This rank's end of a pair: the engine's peer, a session over both pools, and the messages that
// wait for room in the peer's ring. When the peer is lost, everything is dropped, and the owner
// connects again.
//
// Thread-safety: one thread.
class PairLink {
 public:
  PairLink(Engine& engine, const Region& pool) : engine_(engine), pool_(pool) {}

  Status connect(std::span<const std::byte> descriptor, Duration timeout);
  // Over this rank's pool and the peer's. Errors: invalid_state (closed) if not connected.
  Status open_session(std::span<const std::byte> packed_region, uint32_t remote_pool_blocks);
  void drop() noexcept;

  bool connected() const noexcept;
  Session* session() noexcept { return session_ ? &*session_ : nullptr; }
  uint32_t remote_pool_blocks() const noexcept { return remote_pool_blocks_; }

  // Queues; flush() sends in order. Without a connected peer the message is lost, as it would be on
  // a connection that is cut a moment later.
  void post(const PairMessage& message);
  void post(std::span<const PairMessage> messages);
  // Sends what the peer's ring takes. A failure other than a full ring drops the link and is
  // returned.
  Status flush();
  // Until all is sent. Errors: also timed_out.
  Status flush_all(const Deadline& deadline);
  bool has_queued() const noexcept { return !queue_.empty(); }
  // Sends the message once the transfer is complete; nothing may be queued.
  Status notify_after(const PairMessage& message, const Transfer& transfer);

 private:
  Engine& engine_;
  const Region& pool_;
  std::optional<Peer> peer_;
  std::optional<Session> session_;
  uint32_t remote_pool_blocks_ = 0;
  std::deque<std::vector<std::byte>> queue_;
};

}  // namespace stagelink::cli::replay
