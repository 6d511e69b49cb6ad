#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/deadline.h"
#include "cli/replay/rank/huge_memory.h"
#include "cli/replay/workload/layout.h"
#include "cli/replay/workload/workload.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

// How fast this machine can be at a batch: libc memcpy of the same ranges between two private
// huge-page regions of this process, the source freshly filled as the sender's pool was.
//
// Thread-safety: one thread.
class LimitProbe {
 public:
  static Result<LimitProbe> create(const Layout& layout);

  struct Block {
    BlockKey key;
    uint32_t from = 0;
    uint32_t to = 0;
  };
  // The time that the copies take; filling lies outside. Blocks beyond the pool are folded into it.
  Duration measure(std::span<const Block> blocks);

 private:
  LimitProbe(const Layout& layout, HugeMemory from, HugeMemory to)
      : layout_(layout), from_(std::move(from)), to_(std::move(to)) {}
  Layout layout_;
  HugeMemory from_;
  HugeMemory to_;
};

}  // namespace stagelink::cli::replay
