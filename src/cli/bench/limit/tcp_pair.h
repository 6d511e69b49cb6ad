#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

// A connection over loopback whose buffers the kernel sizes, and blocking calls on it. No call
// blocks for longer than the connection's timeout.
//
// Thread-safety: one thread at a time.
class TcpEnd {
 public:
  // Errors: unreachable (refused); limit (nofile).
  static Result<TcpEnd> connect(uint16_t port, Duration timeout);

  // All bytes, or an error: peer_lost (the other end has closed), timed_out.
  Status send(std::span<const std::byte> bytes) const;
  Status receive(std::span<std::byte> bytes) const;

  int fd() const noexcept { return socket_.get(); }

 private:
  friend class TcpListener;
  explicit TcpEnd(UniqueFd socket) noexcept : socket_(std::move(socket)) {}
  static Result<TcpEnd> prepare(UniqueFd socket, Duration timeout);
  UniqueFd socket_;
};

// Takes one connection on a free port of 127.0.0.1.
//
// Thread-safety: one thread at a time.
class TcpListener {
 public:
  // Errors: limit (nofile).
  static Result<TcpListener> create();
  uint16_t port() const noexcept { return port_; }
  // `timeout` is how long to wait, and the connection's. Errors: timed_out.
  Result<TcpEnd> accept(Duration timeout) const;

 private:
  TcpListener(UniqueFd socket, uint16_t port) noexcept : socket_(std::move(socket)), port_(port) {}
  UniqueFd socket_;
  uint16_t port_ = 0;
};

}  // namespace stagelink::cli::bench
