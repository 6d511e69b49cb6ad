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

  // All or nothing. Errors name the range: not_registered, superseded, permission (read_only),
  // invalid_argument (out_of_bounds, overflow).
  Status open(const wire::BatchHeader& batch, const memory::RegionRegistry& registry,
              Direction direction);
  PieceList& pieces() noexcept { return pieces_; }
  // Somebody waits to deregister one of the regions: release soon.
  bool retired() const noexcept;
  // The memory is not touched any more. Idempotent.
  void release() noexcept;

 private:
  Status open_by_region(const wire::BatchHeader& batch, const memory::RegionRegistry& registry,
                        Direction direction);
  Status open_by_address(const wire::BatchHeader& batch, const memory::RegionRegistry& registry,
                         Direction direction);
  Status pin(std::shared_ptr<memory::RegionRecord> record, Direction direction);

  std::vector<std::shared_ptr<memory::RegionRecord>> regions_;  // Pinned.
  PieceList pieces_;
};

}  // namespace stagelink::transport
