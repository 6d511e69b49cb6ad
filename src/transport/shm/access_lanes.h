#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "wire/peer_page_layout.h"
#include "wire/table_layout.h"

// How the owner of memory learns that nobody touches it any more, without a system call on either
// side of a copy.
//
// 1. A reader claims one of the lanes of its peer page, writes the rows it may touch and then the
//    epoch of the region table it has seen.
// 2. Only then it checks the generation of each row, copies, checks again, and clears the lane.
// 3. The owner passes a row's generation, then advances the epoch, then looks at the lanes.
//
// The reader's (write lane, read row) and the owner's (write row, read lane) are all sequentially
// consistent: either the owner sees the lane, or the reader sees that the generation has passed. A
// lane with the new epoch has seen the new generation, so the owner need not wait for it.
namespace stagelink::transport {

constexpr uint64_t row_bit(uint32_t row) noexcept { return uint64_t{1} << (row % 64); }

// The reader's side of one peer page.
//
// Thread-safety: all methods may run at the same time.
class AccessLanes {
 public:
  AccessLanes(wire::PeerPage& page, const wire::TableHeader& table) noexcept
      : page_(page), table_(table) {}

  // A free lane, or nothing if all are taken by threads that copy from this peer right now.
  std::optional<uint32_t> claim() noexcept;
  void enter(uint32_t lane, uint64_t rows_mask) noexcept;
  // Clears the lane, wakes an owner that waits for it, and gives the lane back.
  void leave(uint32_t lane) noexcept;
  // No thread of ours is inside.
  bool idle() const noexcept { return free_.load() == kAllFree; }

 private:
  static constexpr uint32_t kAllFree = (uint32_t{1} << wire::kLaneCount) - 1;

  wire::PeerPage& page_;
  const wire::TableHeader& table_;
  std::atomic<uint32_t> free_{kAllFree};
};

// The owner's side: does this peer still hold an access to `row` that began before `epoch`?
// Returns the lane to wait for.
std::optional<uint32_t> lane_inside(const wire::PeerPage& page, uint32_t row,
                                    uint64_t epoch) noexcept;

}  // namespace stagelink::transport
