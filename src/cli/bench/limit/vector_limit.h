#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/types.h>
#include <sys/uio.h>

#include "cli/bench/rig/measure.h"

namespace stagelink::cli::bench {

// What reading or writing another process's memory costs without an engine: process_vm_readv or
// process_vm_writev over the same ranges, neighbours merged, 1024 vectors a call.
//
// Thread-safety: one thread at a time.
class VectorLimit {
 public:
  // `remote_address` is where the region of the process begins there.
  VectorLimit(pid_t process, uint64_t remote_address, std::span<std::byte> local) noexcept
      : process_(process), remote_address_(remote_address), local_(local) {}

  // This object must outlive them and stay where it is.
  Contender read();
  Contender write();

 private:
  using Call = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                           unsigned long);
  Contender contender(Call call);
  Status move(const Picks& picks, Call call);

  const pid_t process_;
  const uint64_t remote_address_;
  const std::span<std::byte> local_;
  std::vector<iovec> here_;
  std::vector<iovec> there_;
};

}  // namespace stagelink::cli::bench
