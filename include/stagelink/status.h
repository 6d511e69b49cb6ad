#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace stagelink {

// What a failure has broken, from the smallest thing to the largest. Recovery switches on the
// scope: fix the call, retry the transfer, register the region again, reconnect the peer, restart
// the engine. The code is for reports and for branching on a known case.
enum class Scope : uint8_t { kNone, kCall, kTransfer, kRegion, kPeer, kEngine };

enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument,
  kNotRegistered,
  kPermission,
  kNotFound,
  kAlreadyExists,
  kSuperseded,
  kTimedOut,
  kCancelled,
  kBusy,
  kNoSpace,
  kLimit,
  kUnreachable,
  kPeerLost,
  kIncompatible,
  kCorrupt,
  kInvalidState,
};
inline constexpr int kCodeCount = 17;  // With kOk.

// The finer cause of a failure. Each reason belongs to exactly one code, so a Status is made from
// its reason alone. The first reason of a code carries the code's own name.
enum class Reason : uint8_t {
  kOk = 0,
  // invalid_argument
  kInvalidArgument,
  kOutOfBounds,
  kOverflow,
  kNotContiguous,
  kUnknownKey,
  kUnsupported,
  // not_registered
  kNotRegistered,
  // permission
  kPermission,
  kReadOnly,
  kOtherUser,
  kAuthentication,
  // not_found
  kNotFound,
  // already_exists
  kAlreadyExists,
  kPortInUse,
  // superseded
  kSuperseded,
  kExpired,
  kEvicted,
  // timed_out
  kTimedOut,
  kConnectTimeout,
  // cancelled
  kCancelled,
  // busy
  kBusy,
  kRingFull,
  kReaderInside,
  kTooManyTransfers,
  // no_space
  kNoSpace,
  kShmFull,
  // limit
  kLimit,
  kTooLarge,
  kMemlock,
  kNofile,
  kTooManyRegions,
  kTooManyPeers,
  kTooManyRanges,
  kHugePages,
  kNuma,
  kNoPorts,
  // unreachable
  kUnreachable,
  kRefused,
  kStopped,
  kOtherHost,
  kPartition,
  // peer_lost
  kPeerLost,
  kConnectionCut,
  kRestarted,
  // incompatible
  kIncompatible,
  kVersion,
  // corrupt
  kCorrupt,
  kChecksum,
  kFrame,
  // invalid_state
  kInvalidState,
  kClosed,
  kForked,
  kSystem,
};
inline constexpr int kReasonCount = static_cast<int>(Reason::kSystem) + 1;

std::string_view code_name(Code code) noexcept;
std::string_view scope_name(Scope scope) noexcept;
std::string_view reason_name(Reason reason) noexcept;
Code code_of(Reason reason) noexcept;
Scope scope_of(Code code) noexcept;

// The outcome of an operation that has no value to return. Success is one null pointer and never
// allocates; only a failure carries a message.
//
// Thread-safety: a Status is a value. Const methods may run at the same time.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(Reason reason, std::string message);

  bool ok() const noexcept { return failure_ == nullptr; }
  Reason reason() const noexcept { return ok() ? Reason::kOk : failure_->reason; }
  Code code() const noexcept { return code_of(reason()); }
  Scope scope() const noexcept { return scope_of(code()); }
  std::string_view message() const noexcept {
    return ok() ? std::string_view{} : std::string_view{failure_->message};
  }
  // "out_of_bounds (invalid_argument): message", or "ok".
  std::string to_string() const;

 private:
  struct Failure {
    Reason reason;
    std::string message;
  };
  std::shared_ptr<const Failure> failure_;
};

}  // namespace stagelink
