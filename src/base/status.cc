#include "stagelink/status.h"

#include <array>
#include <utility>

namespace stagelink {
namespace {

struct ReasonRow {
  Reason reason;
  Code code;
  std::string_view name;
};

// In the order of the enumeration; checked below.
constexpr std::array<ReasonRow, kReasonCount> kReasons = {{
    {Reason::kOk, Code::kOk, "ok"},
    {Reason::kInvalidArgument, Code::kInvalidArgument, "invalid_argument"},
    {Reason::kOutOfBounds, Code::kInvalidArgument, "out_of_bounds"},
    {Reason::kOverflow, Code::kInvalidArgument, "overflow"},
    {Reason::kNotContiguous, Code::kInvalidArgument, "not_contiguous"},
    {Reason::kUnknownKey, Code::kInvalidArgument, "unknown_key"},
    {Reason::kUnsupported, Code::kInvalidArgument, "unsupported"},
    {Reason::kNotRegistered, Code::kNotRegistered, "not_registered"},
    {Reason::kPermission, Code::kPermission, "permission"},
    {Reason::kReadOnly, Code::kPermission, "read_only"},
    {Reason::kOtherUser, Code::kPermission, "other_user"},
    {Reason::kAuthentication, Code::kPermission, "authentication"},
    {Reason::kNotFound, Code::kNotFound, "not_found"},
    {Reason::kAlreadyExists, Code::kAlreadyExists, "already_exists"},
    {Reason::kPortInUse, Code::kAlreadyExists, "port_in_use"},
    {Reason::kSuperseded, Code::kSuperseded, "superseded"},
    {Reason::kExpired, Code::kSuperseded, "expired"},
    {Reason::kEvicted, Code::kSuperseded, "evicted"},
    {Reason::kTimedOut, Code::kTimedOut, "timed_out"},
    {Reason::kConnectTimeout, Code::kTimedOut, "connect_timeout"},
    {Reason::kCancelled, Code::kCancelled, "cancelled"},
    {Reason::kBusy, Code::kBusy, "busy"},
    {Reason::kRingFull, Code::kBusy, "ring_full"},
    {Reason::kReaderInside, Code::kBusy, "reader_inside"},
    {Reason::kTooManyTransfers, Code::kBusy, "too_many_transfers"},
    {Reason::kNoSpace, Code::kNoSpace, "no_space"},
    {Reason::kShmFull, Code::kNoSpace, "shm_full"},
    {Reason::kLimit, Code::kLimit, "limit"},
    {Reason::kTooLarge, Code::kLimit, "too_large"},
    {Reason::kMemlock, Code::kLimit, "memlock"},
    {Reason::kNofile, Code::kLimit, "nofile"},
    {Reason::kTooManyRegions, Code::kLimit, "too_many_regions"},
    {Reason::kTooManyPeers, Code::kLimit, "too_many_peers"},
    {Reason::kTooManyRanges, Code::kLimit, "too_many_ranges"},
    {Reason::kHugePages, Code::kLimit, "huge_pages"},
    {Reason::kNuma, Code::kLimit, "numa"},
    {Reason::kNoPorts, Code::kLimit, "no_ports"},
    {Reason::kUnreachable, Code::kUnreachable, "unreachable"},
    {Reason::kRefused, Code::kUnreachable, "refused"},
    {Reason::kStopped, Code::kUnreachable, "stopped"},
    {Reason::kOtherHost, Code::kUnreachable, "other_host"},
    {Reason::kPartition, Code::kUnreachable, "partition"},
    {Reason::kPeerLost, Code::kPeerLost, "peer_lost"},
    {Reason::kConnectionCut, Code::kPeerLost, "connection_cut"},
    {Reason::kRestarted, Code::kPeerLost, "restarted"},
    {Reason::kIncompatible, Code::kIncompatible, "incompatible"},
    {Reason::kVersion, Code::kIncompatible, "version"},
    {Reason::kCorrupt, Code::kCorrupt, "corrupt"},
    {Reason::kChecksum, Code::kCorrupt, "checksum"},
    {Reason::kFrame, Code::kCorrupt, "frame"},
    {Reason::kInvalidState, Code::kInvalidState, "invalid_state"},
    {Reason::kClosed, Code::kInvalidState, "closed"},
    {Reason::kForked, Code::kInvalidState, "forked"},
    {Reason::kSystem, Code::kInvalidState, "system"},
}};

constexpr bool in_order() {
  for (size_t i = 0; i < kReasons.size(); ++i) {
    if (static_cast<size_t>(kReasons[i].reason) != i) return false;
  }
  return true;
}
static_assert(in_order());

constexpr const ReasonRow& row(Reason reason) noexcept {
  const auto index = static_cast<size_t>(reason);
  return kReasons[index < kReasons.size() ? index : kReasons.size() - 1];
}

}  // namespace

std::string_view code_name(Code code) noexcept {
  switch (code) {  // No default: the compiler names the case that a new code lacks.
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kNotRegistered: return "not_registered";
    case Code::kPermission: return "permission";
    case Code::kNotFound: return "not_found";
    case Code::kAlreadyExists: return "already_exists";
    case Code::kSuperseded: return "superseded";
    case Code::kTimedOut: return "timed_out";
    case Code::kCancelled: return "cancelled";
    case Code::kBusy: return "busy";
    case Code::kNoSpace: return "no_space";
    case Code::kLimit: return "limit";
    case Code::kUnreachable: return "unreachable";
    case Code::kPeerLost: return "peer_lost";
    case Code::kIncompatible: return "incompatible";
    case Code::kCorrupt: return "corrupt";
    case Code::kInvalidState: return "invalid_state";
  }
  return "unknown";
}

std::string_view scope_name(Scope scope) noexcept {
  switch (scope) {
    case Scope::kNone: return "none";
    case Scope::kCall: return "call";
    case Scope::kTransfer: return "transfer";
    case Scope::kRegion: return "region";
    case Scope::kPeer: return "peer";
    case Scope::kEngine: return "engine";
  }
  return "unknown";
}

std::string_view reason_name(Reason reason) noexcept { return row(reason).name; }
Code code_of(Reason reason) noexcept { return row(reason).code; }

Scope scope_of(Code code) noexcept {
  switch (code) {
    case Code::kOk: return Scope::kNone;
    case Code::kInvalidArgument:
    case Code::kPermission:
    case Code::kNotFound:
    case Code::kAlreadyExists:
    case Code::kLimit: return Scope::kCall;
    case Code::kTimedOut:
    case Code::kCancelled:
    case Code::kBusy:
    case Code::kNoSpace:
    case Code::kCorrupt: return Scope::kTransfer;
    case Code::kNotRegistered:
    case Code::kSuperseded: return Scope::kRegion;
    case Code::kUnreachable:
    case Code::kPeerLost:
    case Code::kIncompatible: return Scope::kPeer;
    case Code::kInvalidState: return Scope::kEngine;
  }
  return Scope::kEngine;
}

Status::Status(Reason reason, std::string message) {
  if (reason == Reason::kOk) return;
  failure_ = std::make_shared<const Failure>(Failure{reason, std::move(message)});
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text(reason_name(reason()));
  if (text != code_name(code())) {
    text += " (";
    text += code_name(code());
    text += ")";
  }
  return text + ": " + failure_->message;
}

}  // namespace stagelink
