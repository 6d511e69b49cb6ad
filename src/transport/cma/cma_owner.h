#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <sys/types.h>

#include "base/unique_fd.h"
#include "stagelink/result.h"
#include "wire/table_layout.h"

namespace stagelink::transport {

// A peer's process, whose memory we may read and write with process_vm_readv and process_vm_writev.
//
// Those calls name the process by its pid, and pids are given out again. Two things make sure that
// a copy came from the peer and from nobody else:
//  1. The pidfd, held from connect on, tells of the process's end; as long as it tells of none, the
//     pid is that of the peer.
//  2. The identity, read out of the process's memory, is 128 random bits that only this engine has
//     at that address: a process that has replaced its program (exec) has it no longer.
//
// Thread-safety: all methods may run at the same time.
class CmaOwner {
 public:
  // Finds the process at the other end of a UNIX socket and tries to read its identity. `table` is
  // its region table, mapped here. Errors: permission (other_user) and invalid_argument
  // (unsupported) name what stands in the way; peer_lost.
  static Result<std::shared_ptr<CmaOwner>> probe(int control, const wire::TableHeader& table);

  CmaOwner(pid_t pid, UniqueFd pidfd, uint64_t identity_address,
           const wire::TableIdentity& identity) noexcept;

  pid_t pid() const noexcept { return pid_; }
  uint64_t identity_address() const noexcept { return identity_address_; }
  // Reads what is at identity_address() now. 0, or the error of process_vm_readv.
  int read_identity(wire::TableIdentity& seen) const noexcept;
  // What was read at identity_address() is the peer's, and the peer's process has not ended.
  Status check(const wire::TableIdentity& seen) const;
  bool alive() const noexcept;

  // The kernel has begun to refuse; batches that come now look for another way.
  void refuse() noexcept { refused_.store(true); }
  bool refused() const noexcept { return refused_.load(); }

 private:
  const pid_t pid_;
  const UniqueFd pidfd_;
  const uint64_t identity_address_;
  const wire::TableIdentity identity_;
  std::atomic<bool> refused_{false};
};

}  // namespace stagelink::transport
