#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "connector/pull/claim.h"
#include "connector/pull/memory/registered_memory.h"
#include "connector/pull/receiver/claim_state.h"

namespace stagelink::pull {

// Parts of one claimed payload, on their way.
struct PartsOfClaim {
  ClaimState* claim = nullptr;
  std::span<const ReadPart> parts;
};

struct ReadOutcome {
  Status status;
  std::optional<uint64_t> sum;  // Of the whole payload, if its sender has told one.
};

// Reads claimed payloads: all of them at once, and then their stamps, which say whether the bytes
// were still those of the claims. Claims that are read over one session make one transfer.
//
// Thread-safety: all methods may run at the same time.
class Reader {
 public:
  Reader(std::shared_ptr<Home> home, const RegisteredMemory& memory) noexcept
      : home_(std::move(home)), memory_(memory) {}

  // One outcome a claim, in order. Each ends by `deadline` and by the end of its claim. When it
  // returns, nothing touches the memory any more.
  std::vector<ReadOutcome> read(std::span<const PartsOfClaim> reads,
                                const Deadline& deadline) const;

 private:
  struct Range;
  struct RangeArrays;
  class Flight;
  class Trip;
  static void fly(std::span<Flight* const> flights);
  const std::shared_ptr<Home> home_;
  const RegisteredMemory& memory_;
};

}  // namespace stagelink::pull
