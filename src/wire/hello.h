#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagelink/region.h"
#include "stagelink/result.h"

// The handshake. A text is a u16 length and its bytes, without control characters. A sender with a
// newer minor may append fields to a hello or a welcome; an older receiver ignores them.
//
//   Hello                                   Welcome
//   offset  bytes  field                    offset  bytes  field
//        0      2  version major                 0      2  version major
//        2      2  version minor                 2      2  version minor
//        4      1  role                          4      4  pid
//        5      3  zero                          8     16  instance (high, low)
//        8     16  instance (high, low)         24     16  host
//       24     16  target                       40      4  table_capacity
//       40     16  host                         44      4  ring_bytes
//       56      4  pid                          48      8  page_nonce
//       60    2+n  name                         56      8  max_notification_bytes
//      ...      4  flags                        64    2+n  name
//      ...     32  nonce                       ...    2+m  socket_path
//                                              ...      4  flags
//   Outcome
//        0      2  reason (wire/reason_code.h)
//        2    2+n  message
//
// Flags of a hello: bit 0 authenticates, bit 1 wants checked frames, since 1.2 bit 2 may stage. Of
// a welcome: bit 1, frames behind it are checked (wire/frame_sum.h), since 1.2 bit 2 stages. A bit
// of a newer minor is ignored.
namespace stagelink::wire {

// What a connection is for. A probe (over TCP) only learns the welcome and is closed.
enum class Role : uint8_t { kControl = 1, kData = 2, kProbe = 3 };

struct Version {
  uint16_t major = 0;
  uint16_t minor = 0;
  friend bool operator==(const Version&, const Version&) = default;
};

// Random bytes that are used once.
using Nonce = std::array<std::byte, 32>;

// First frame from the connecting side.
struct Hello {
  Version version;
  Role role = Role::kControl;
  InstanceId instance;  // Of the sender.
  InstanceId target;    // The instance it wants; zero: whoever listens here.
  InstanceId host;      // Identity of the sender's boot and IPC namespace.
  uint32_t pid = 0;
  std::string name;            // At most kMaxNameBytes.
  bool authenticates = false;  // It has a secret: see wire/auth.h.
  bool wants_checks = false;
  bool may_stage = false;  // kData over a UNIX socket: it would map a staging area.
  Nonce nonce{};           // Zeros unless it authenticates.
  friend bool operator==(const Hello&, const Hello&) = default;
};

// Answer to a hello. Over a UNIX socket to a kControl hello it carries four fds: region table
// (read-only), peer page, doorbell page, eventfd. One that stages carries one, the staging area.
struct Welcome {
  Version version;
  InstanceId instance;
  InstanceId host;
  uint32_t pid = 0;
  uint32_t table_capacity = 0;
  uint32_t ring_bytes = 0;
  uint64_t page_nonce = 0;  // Stands in the peer page too.
  uint64_t max_notification_bytes = 0;
  std::string name;
  std::string socket_path;  // Where same-host peers connect.
  bool checks = false;      // Each frame behind the welcome ends in its sum.
  bool stages = false;      // Data frames may be kStaged.
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

// How a request or a handshake ended.
struct Outcome {
  Reason reason = Reason::kOk;
  std::string message;  // Cut to kMaxMessageBytes by the encoder.
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

inline constexpr size_t kMaxNameBytes = 128;
inline constexpr size_t kMaxPathBytes = 107;  // sun_path less its NUL.
inline constexpr size_t kMaxMessageBytes = 1024;

// Texts that are longer than their bound are cut, and their control characters become '?': what an
// encoder makes can always be decoded. Whoever accepts a name or a path checks its length first.
std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const Welcome& welcome);
std::vector<std::byte> encode(const Outcome& outcome);
// Errors: corrupt (frame), incompatible (version) naming both versions.
Result<Hello> decode_hello(std::span<const std::byte> in);
Result<Welcome> decode_welcome(std::span<const std::byte> in);
// An unknown reason of a newer minor becomes the first reason of its code.
Result<Outcome> decode_outcome(std::span<const std::byte> in);

// The outcome as a Status, its message prefixed by `who` said it.
Status to_status(const Outcome& outcome, const char* who);

// incompatible unless the majors are equal and the minors at most one apart.
Status check_version(Version theirs, const char* what);
Version own_version() noexcept;

}  // namespace stagelink::wire
