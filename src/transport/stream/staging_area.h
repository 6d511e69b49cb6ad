#pragma once

#include <cstddef>
#include <span>

#include "base/unique_fd.h"
#include "stagelink/result.h"

namespace stagelink::transport {

// Memory that both ends of a data connection over a UNIX socket map. Bytes of many small pieces
// pass through it instead of the socket: one end copies pieces together, the other spreads them
// out, and the kernel copies nothing. One half for each direction; each is written by one end and
// read by the other.
//
// The file is sealed, so that its size cannot change, and has no pages until somebody writes. What
// the other end writes, and when, is its own affair: bytes are copied out and never trusted.
//
// Thread-safety: a value; the halves are used by one thread each.
class StagingArea {
 public:
  static constexpr size_t kHalfBytes = 512 << 10;

  // By the owner of the regions. Errors: limit (nofile).
  static Result<StagingArea> create();
  // By the initiator, of what a welcome has brought. Errors: corrupt, limit.
  static Result<StagingArea> open(UniqueFd fd);
  StagingArea(StagingArea&& other) noexcept;
  StagingArea& operator=(StagingArea&& other) noexcept;
  ~StagingArea();

  std::span<std::byte> from_owner() const noexcept { return bytes_.first(kHalfBytes); }
  std::span<std::byte> from_initiator() const noexcept { return bytes_.last(kHalfBytes); }
  // Of the owner, until the welcome has gone.
  UniqueFd take_fd() noexcept { return std::move(fd_); }

 private:
  StagingArea() noexcept = default;

  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

}  // namespace stagelink::transport
