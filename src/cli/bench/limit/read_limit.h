#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/types.h>
#include <sys/uio.h>

#include "cli/bench/rig/measure.h"

namespace stagelink::cli::bench {

// What reading another process's memory costs without an engine: process_vm_readv over the same
// ranges, neighbours merged, 1024 vectors a call.
//
// Thread-safety: one thread at a time.
class ReadLimit {
 public:
  // `remote_address` is where the region of the process begins there.
  ReadLimit(pid_t process, uint64_t remote_address, std::span<std::byte> local) noexcept
      : process_(process), remote_address_(remote_address), local_(local) {}

  // This object must outlive it and stay where it is.
  Contender read();

 private:
  Status move(const Picks& picks);

  const pid_t process_;
  const uint64_t remote_address_;
  const std::span<std::byte> local_;
  std::vector<iovec> here_;
  std::vector<iovec> there_;
};

}  // namespace stagelink::cli::bench
