#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/endpoint.h"
#include "stagelink/engine_options.h"
#include "stagelink/status.h"

namespace stagelink::pull {

// One run of bytes that a foreign engine moves.
struct AddressedRange {
  uint64_t local = 0;   // Address here.
  uint64_t remote = 0;  // Address at the sender.
  uint64_t bytes = 0;
};

// Moves bytes of a pool that our engine cannot reach: memory of a device, behind the engine of its
// vendor. Keys, claims and stamps stay with the connector; of payloads it knows addresses only.
//
// Thread-safety: all methods may run at the same time.
class DataPlane {
 public:
  virtual ~DataPlane() = default;
  // The registered memory that becomes the pool. Never touched by the connector itself.
  virtual std::span<std::byte> memory() = 0;
  // Where peers' engines reach this one.
  virtual Endpoint endpoint() const = 0;
  virtual Status copy_in(std::span<const std::span<const std::byte>> from,
                         std::span<std::byte> to) = 0;
  // Returns when the bytes are in place or never will be. The time is a wish where the vendor's
  // call takes none; the connector then judges by the end of the claim.
  virtual Status read(const Endpoint& sender, std::span<const AddressedRange> ranges,
                      Duration timeout) = 0;
};

}  // namespace stagelink::pull
