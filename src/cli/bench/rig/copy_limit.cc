#include "cli/bench/rig/copy_limit.h"

#include <cstring>
#include <utility>

#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

CopyLimit::CopyLimit(PrivateMemory from, PrivateMemory to) noexcept
    : from_(std::move(from)), to_(std::move(to)), kernel_(memory::pick_copy_kernel(1)) {}

Result<CopyLimit> CopyLimit::create() {
  SL_ASSIGN(PrivateMemory from, PrivateMemory::create(kRegionBytes));
  SL_ASSIGN(PrivateMemory to, PrivateMemory::create(kRegionBytes));
  return CopyLimit(std::move(from), std::move(to));
}

Contender CopyLimit::plain() {
  return [this](const Picks& picks, Sample& sample) -> Status {
    const double start_us = now_us();
    copy_plain(picks);
    sample.wall_us = now_us() - start_us;
    return Status();
  };
}

Contender CopyLimit::streaming() {
  return [this](const Picks& picks, Sample& sample) -> Status {
    const double start_us = now_us();
    copy_streaming(picks);
    sample.wall_us = now_us() - start_us;
    return Status();
  };
}

void CopyLimit::copy_plain(const Picks& picks) noexcept {
  for (size_t i = 0; i < picks.sizes.size(); ++i) {
    std::memcpy(to_.bytes().data() + picks.local[i], from_.bytes().data() + picks.remote[i],
                picks.sizes[i]);
  }
  // Nobody reads the copy: keep the compiler from leaving it out.
  asm volatile("" : : : "memory");
}

void CopyLimit::copy_streaming(const Picks& picks) noexcept {
  for (size_t i = 0; i < picks.sizes.size(); ++i) {
    // One by one, as a caller without a batch would; streaming from the first byte on.
    kernel_.copy(to_.bytes().data() + picks.local[i], from_.bytes().data() + picks.remote[i],
                 picks.sizes[i]);
  }
  memory::copy_fence();
}

}  // namespace stagelink::cli::bench
