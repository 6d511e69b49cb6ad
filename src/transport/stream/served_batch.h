#pragma once

#include <memory>
#include <vector>

#include "memory/region_registry.h"
#include "stagelink/result.h"
#include "transport/stream/piece_list.h"
#include "transport/transport.h"
#include "wire/batch_header.h"

namespace stagelink::transport {

// A peer's range list, checked against the regions of this engine and turned into memory. Its
// regions stay pinned until release().
//
// Thread-safety: none; used by one thread.
class ServedBatch {
 public:
  ServedBatch() = default;
  ServedBatch(const ServedBatch&) = delete;
  ServedBatch& operator=(const ServedBatch&) = delete;
  ~ServedBatch() { release(); }

  // Begins to check a list, which stays where it is until it has been checked. Errors of both:
  // not_registered, superseded, permission (read_only), invalid_argument (out_of_bounds, overflow),
  // each naming the range; then nothing stays pinned.
  Status begin(const wire::BatchHeader& batch, const memory::RegionRegistry& registry,
               Direction direction);
  // Checks the next `max_ranges`. True: that was all, and pieces() is complete.
  Result<bool> go_on(size_t max_ranges);
  PieceList& pieces() noexcept { return pieces_; }
  // Somebody waits to deregister one of the regions: release soon.
  bool retired() const noexcept;
  // The memory is not touched any more. Idempotent.
  void release() noexcept;

 private:
  wire::WireRange next_range() noexcept;
  Status add_by_region(const wire::WireRange& range);
  Status add_by_address(const wire::WireRange& range);
  Status pin(std::shared_ptr<memory::RegionRecord> record);

  const wire::BatchHeader* batch_ = nullptr;  // While it is being checked.
  const memory::RegionRegistry* registry_ = nullptr;
  Direction direction_ = Direction::kRead;
  size_t count_ = 0;
  size_t checked_ = 0;
  wire::GroupWalk walk_;
  std::vector<std::shared_ptr<memory::RegionRecord>> regions_;  // Pinned.
  PieceList pieces_;
};

}  // namespace stagelink::transport
