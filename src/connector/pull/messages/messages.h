#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/region.h"
#include "stagelink/result.h"

// What sender and receiver say to each other, the same over a UNIX socket and over ZeroMQ. One
// message a packet or frame, little-endian. A text is a u16 length and its bytes.
//
//   every message                           Claim: some keys are wanted
//   offset  bytes  field                        12     16  receiver (high, low)
//        0      4  magic "SLPM" (0x4d504c53)    28     16  life (high, low)
//        4      2  version major                44      4  wait_ms
//        6      2  version minor                48      2  count, 1 to 64
//        8      2  type                         50      2  zero
//       10      2  zero                        ...  each   id u64, generation u64, key (text)
//                                              ...      4  flags: bit 0, answers may come together
//
//   Hello: who are you?                     Grant: a claim is taken
//       12     16  receiver                     12      8  id
//                                               20      4  parked_ms
//   Welcome                                     24      4  claim_ms
//       12     16  life                         28      8  generation
//       28     16  host                         36      8  bytes
//       44      4  claim_ms                     44      8  stamp_offset
//       48     80  pool (RegionDesc)            52      4  flags: bit 0 fast path
//      128     80  stamps (RegionDesc)          56      4  piece_count, 1 to 4096
//      208      2  socket_path (text)           60      4  region_count, at most 256
//      ...         plane (text)                 64   80 n  regions (RegionDesc)
//      ...         engine: u16 length, blob    ...   24 m  pieces: u32 region, u32 zero, u64
//      offset,
//                                                          u64 bytes; region 2^32-1 is the pool
//   Denial: a claim is not taken, or has ended
//       12      8  id                       Release: claims are given up, or have been read
//       20      2  reason                       12     16  receiver
//       22         why (text)                   28     16  life
//                                               44      2  count, 1 to 1024
//   Refusal: a message makes no sense           46      2  zero
//       12      8  id of its first claim, or 0 ...   each  id u64, u8 consumed
//       20      2  reason
//       22         why (text)               Answers: grants and denials, in one message
//                                               12      2  count, 1 to 64
//                                               14      2  zero
//                                              ...  each   u32 length, a whole message
//
// A life is 128 random bits that stand for one connector from its start to its end. They are told
// in a welcome alone, and whoever claims or releases must name them.
namespace stagelink::pull {

inline constexpr uint32_t kMessageMagic = 0x4d504c53;
inline constexpr size_t kMaxMessageBytes = 192 << 10;
inline constexpr size_t kMaxClaimEntries = 64;
inline constexpr size_t kMaxReleaseEntries = 1024;
inline constexpr size_t kMaxGrantRegions = 256;
inline constexpr size_t kMaxGrantPieces = 4096;
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 48;
inline constexpr uint32_t kPoolRegion = UINT32_MAX;
inline constexpr uint32_t kMaxWaitMs = 24 * 3'600'000;

enum class MessageType : uint16_t {
  kHello = 1,
  kWelcome = 2,
  kClaim = 3,
  kGrant = 4,
  kDenial = 5,
  kRelease = 6,
  kRefusal = 7,
  kAnswers = 8,
};

using Message = std::vector<std::byte>;
using MessageSpan = std::span<const std::byte>;

// The type, if it is a message of a version that we speak. Errors: corrupt (frame); incompatible
// (version) names both.
Result<MessageType> message_type(MessageSpan in);
// Whether it begins like a message of ours, whatever its version.
bool is_pull_message(MessageSpan in) noexcept;

struct HelloMessage {
  InstanceId receiver;
};

struct WelcomeMessage {
  InstanceId life;
  InstanceId host;
  uint32_t claim_ms = 0;
  RegionDesc pool;
  RegionDesc stamps;
  std::string socket_path;        // Of the UNIX door; empty: there is none.
  std::string plane;              // "host:port" of a foreign engine that moves the bytes.
  std::vector<std::byte> engine;  // Its descriptor.
};

struct ClaimEntry {
  uint64_t id = 0;
  uint64_t generation = 0;  // 0: any.
  std::string_view key;     // In the message.
};

struct ClaimMessage {
  InstanceId receiver;
  InstanceId life;
  uint32_t wait_ms = 0;
  std::vector<ClaimEntry> entries;
  bool takes_answers = false;  // Several in one message. Peers of old do not say so.
};

struct GrantPiece {
  uint32_t region = kPoolRegion;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const GrantPiece&, const GrantPiece&) = default;
};

// What is the same in all grants of one offer.
struct GrantBody {
  uint64_t generation = 0;
  uint64_t bytes = 0;
  uint64_t stamp_offset = 0;  // In the region of stamps.
  bool is_fast_path = true;
  std::vector<RegionDesc> regions;
  std::vector<GrantPiece> pieces;
  friend bool operator==(const GrantBody&, const GrantBody&) = default;
};

struct Grant {
  uint64_t id = 0;
  uint32_t parked_ms = 0;  // Between its arrival and this answer, rounded down.
  uint32_t claim_ms = 0;   // How long the claim lasts from this answer on.
  GrantBody body;
};

struct Denial {
  uint64_t id = 0;
  Reason reason = Reason::kNotFound;
  std::string why;
};

struct ReleaseEntry {
  uint64_t id = 0;
  bool consumed = false;
  friend bool operator==(const ReleaseEntry&, const ReleaseEntry&) = default;
};

struct ReleaseMessage {
  InstanceId receiver;
  InstanceId life;
  std::vector<ReleaseEntry> entries;
};

// Each writes over `out`, whose memory it reuses. What is too long for its field is cut.
void encode(const HelloMessage& hello, Message& out);
void encode(const WelcomeMessage& welcome, Message& out);
void encode(const ClaimMessage& claim, Message& out);
void encode(const Denial& denial, Message& out);
void encode(const ReleaseMessage& release, Message& out);
void encode_refusal(const Denial& refusal, Message& out);
// A grant is made for each claim from a body that is encoded once.
Message encode_body(const GrantBody& body);
void encode_grant(const Grant& head, MessageSpan body, Message& out);
// Answers begin empty. False: there is no room for this one, a grant or a denial, any more.
void begin_answers(Message& out);
bool add_answer(MessageSpan answer, Message& out);

// Of messages whose type is known. Errors: corrupt (frame) names the field; limit (too_large).
Status decode(MessageSpan in, HelloMessage& out);
Status decode(MessageSpan in, WelcomeMessage& out);
Status decode(MessageSpan in, ClaimMessage& out);
Status decode(MessageSpan in, Grant& out);
Status decode(MessageSpan in, Denial& out);  // A refusal, too.
Status decode(MessageSpan in, ReleaseMessage& out);
// The messages in it, in `in`, each of a version that we speak.
Status decode_answers(MessageSpan in, std::vector<MessageSpan>& out);

}  // namespace stagelink::pull
