#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/deadline.h"

namespace stagelink::pull {

class ClaimState;

// A payload that its sender keeps in place for us, until end() at the latest. Dropping the claim
// gives it up: somebody else may read the payload.
//
// Thread-safety: one thread at a time.
class Claim {
 public:
  Claim(Claim&&) noexcept;
  Claim& operator=(Claim&&) noexcept;
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim();

  uint64_t bytes() const noexcept;
  uint64_t generation() const noexcept;
  bool is_fast_path() const noexcept;
  // Its sender is one of 0.30: only memory of the pool can be read into.
  bool pool_only() const noexcept;
  const Deadline& end() const noexcept;

 private:
  friend class PullConnector;
  explicit Claim(std::unique_ptr<ClaimState> state) noexcept;
  std::unique_ptr<ClaimState> state_;  // Null: moved from, or finished.
};

// Bytes of a payload and where they go. Fastest into memory of the pool or of
// PullConnector::register_memory(); any other is registered for the time of the read.
struct ReadPart {
  uint64_t offset = 0;  // In the payload.
  std::span<std::byte> into;
};

// Parts of one claimed payload.
struct ClaimRead {
  Claim* claim = nullptr;
  std::span<const ReadPart> parts;
};

}  // namespace stagelink::pull
