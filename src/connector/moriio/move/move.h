#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stagelink/engine_options.h"
#include "stagelink/result.h"
#include "stagelink/transfer.h"

namespace stagelink::moriio {

enum class MoveDirection : uint8_t { kRead, kWrite };

// Ranges of one batch: equal lengths, offsets into the two regions of a MoveTarget.
struct Ranges {
  std::vector<uint64_t> local_offsets;
  std::vector<uint64_t> remote_offsets;
  std::vector<uint64_t> sizes;

  uint64_t bytes() const noexcept;
  void append(const Ranges& other);
};

// A batch on its way. It ends once. Dropped while it runs, it runs on; whoever wants the memory
// back cancels it first.
//
// Thread-safety: one call at a time.
class PostedMove {
 public:
  virtual ~PostedMove() = default;
  // Looks, working or sleeping for at most `patience`.
  virtual TransferPhase poll(Duration patience) = 0;
  // When it returns nothing touches the memory of either side for this batch any more. Errors:
  // invalid_argument (unsupported) if that cannot be promised.
  virtual Status cancel() = 0;
  virtual Status status() const = 0;  // Ok also while running.
};

// Where batches go: a session of whatever kind, for one local and one remote region.
//
// Thread-safety: all methods may run at the same time.
class MoveTarget {
 public:
  virtual ~MoveTarget() = default;
  // Errors: busy (try again soon); others are final. `timeout` is the batch's deadline.
  virtual Result<std::unique_ptr<PostedMove>> post(MoveDirection direction, const Ranges& ranges,
                                                   Duration timeout) = 0;
  // Equal for targets whose batches may be joined into one; 0 for those that may not.
  virtual uint64_t identity() const noexcept = 0;
};

// One batch to be posted.
struct Move {
  std::shared_ptr<MoveTarget> target;
  Ranges ranges;
};

// Joins those of one target, in the order of their first.
std::vector<Move> merge_moves(std::vector<Move> moves);

}  // namespace stagelink::moriio
