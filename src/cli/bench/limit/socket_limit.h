#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "cli/bench/limit/socket_protocol.h"
#include "cli/bench/limit/tcp_pair.h"
#include "cli/bench/limit/vectors.h"
#include "cli/bench/rig/measure.h"
#include "cli/bench/target/target_process.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

// What TCP can do between the two processes of a benchmark, without an engine: the target's main
// thread answers orders over one connection, this thread receives into its own region. Ends the
// connection when it is destroyed.
//
// Thread-safety: one thread at a time.
class SocketLimit {
 public:
  // `target` answers nothing else until this object is gone; its engine works on.
  static Result<std::unique_ptr<SocketLimit>> create(TargetProcess& target, uint64_t region,
                                                     std::span<std::byte> local);
  SocketLimit(const SocketLimit&) = delete;
  SocketLimit& operator=(const SocketLimit&) = delete;
  ~SocketLimit();

  // One message names the ranges; sendmsg and recvmsg of 512 vectors move them into place.
  Contender scattered();
  // As many bytes in one run, from one place of the region to another.
  Contender plain();
  // 8 bytes there and back, after begin_ping_pong() and so many times.
  Status begin_ping_pong(uint32_t count) const;
  Status ping_pong() const;

 private:
  SocketLimit(TargetProcess& target, TcpEnd end, std::span<std::byte> local) noexcept
      : target_(target), end_(std::move(end)), local_(local) {}
  Status move_scattered(const Picks& picks);
  Status move_plain(const Picks& picks) const;

  TargetProcess& target_;
  TcpEnd end_;
  const std::span<std::byte> local_;
  std::vector<std::byte> order_;
  std::vector<iovec> pieces_;
  VectorWalk walk_{kVectorsPerCall};
};

}  // namespace stagelink::cli::bench
