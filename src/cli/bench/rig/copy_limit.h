#pragma once

#include "cli/bench/rig/measure.h"
#include "cli/bench/rig/private_memory.h"
#include "cli/bench/rig/work_unit.h"
#include "memory/copy_kernel.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

// What this machine can do at best: the same ranges copied within one process between two private
// regions of huge pages, once by libc's memcpy and once by streaming stores.
//
// Thread-safety: one thread at a time.
class CopyLimit {
 public:
  static Result<CopyLimit> create();

  // The two ways, as contenders. This object must outlive them and stay where it is.
  Contender plain();
  Contender streaming();

 private:
  void copy_plain(const Picks& picks) noexcept;
  void copy_streaming(const Picks& picks) noexcept;
  CopyLimit(PrivateMemory from, PrivateMemory to) noexcept;

  PrivateMemory from_;
  PrivateMemory to_;
  memory::CopyKernel kernel_;
};

}  // namespace stagelink::cli::bench
