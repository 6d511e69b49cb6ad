#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stagelink::moriio {

// Why a message was not acted upon.
enum class Reject : uint8_t {
  kMalformed,    // Not a message at all.
  kUnknownType,  // A map with a type that is not known.
  kBadField,     // A field that is missing, of the wrong kind or out of range.
  kTooLarge,
  kFrames,     // Not one frame.
  kWrongRole,  // For the other side.
  kToken,      // The transfer's token is missing or another.
  kDuplicate,  // Said before.
  kLate,       // The transfer has ended.
  kWriting,    // New blocks for a transfer that is being written.
  kFull,       // No room to keep it.
  kExpired,    // Kept, and nobody asked for it in time.
};
inline constexpr size_t kRejectCount = 12;
std::string_view reject_name(Reject reason) noexcept;

// Counts by reason, and a line in the log for each, held back when there are many.
//
// Thread-safety: all methods may run at the same time.
class RejectCounter {
 public:
  // `where` is the name of the listener in the log.
  explicit RejectCounter(std::string where) : where_(std::move(where)) {}
  void count(Reject reason, std::string_view detail);
  uint64_t of(Reject reason) const noexcept { return counts_[static_cast<size_t>(reason)].load(); }
  uint64_t total() const noexcept;

 private:
  const std::string where_;
  std::array<std::atomic<uint64_t>, kRejectCount> counts_{};
};

}  // namespace stagelink::moriio
