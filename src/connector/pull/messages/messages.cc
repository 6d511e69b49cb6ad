#include "connector/pull/messages/messages.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/pull/pull_types.h"
#include "stagelink/version.h"
#include "wire/engine_desc.h"
#include "wire/field_reader.h"
#include "wire/reason_code.h"
#include "wire/region_desc.h"

namespace stagelink::pull {
namespace {

constexpr size_t kHeaderBytes = 12;
constexpr size_t kMaxWhyBytes = 512;
constexpr size_t kMaxPathBytes = 107;
constexpr uint32_t kFastPath = 1;
constexpr uint32_t kTakesAnswers = 1;

// Writes fields into a buffer that is used again and again.
class MessageWriter {
 public:
  MessageWriter(Message& out, MessageType type) : out_(out) {
    out_.clear();
    put(kMessageMagic);
    put(static_cast<uint16_t>(kProtocolMajor));
    put(static_cast<uint16_t>(kProtocolMinor));
    put(static_cast<uint16_t>(type));
    put(uint16_t{0});
  }
  explicit MessageWriter(Message& out) : out_(out) {}

  template <typename T>
  void put(T value) {
    const size_t at = out_.size();
    out_.resize(at + sizeof(T));
    std::memcpy(out_.data() + at, &value, sizeof(T));
  }
  void put_id(const InstanceId& id) {
    put(id.high);
    put(id.low);
  }
  void put_bytes(MessageSpan bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void put_text(std::string_view text) {
    put(static_cast<uint16_t>(text.size()));
    put_bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  void put_region(const RegionDesc& desc) { put_bytes(desc.pack()); }

 private:
  Message& out_;
};

wire::FieldReader body_of(const char* what, MessageSpan in) {
  return wire::FieldReader(what, in.subspan(std::min(in.size(), kHeaderBytes)));
}

RegionDesc read_region(wire::FieldReader& in, const char* field) {
  const auto blob = in.get_bytes(field, wire::kRegionDescBytes);
  if (!in.ok()) return {};
  auto desc = RegionDesc::unpack(blob);
  if (desc.ok()) return *desc;
  in.reject(field, "is no region descriptor", 0);
  return {};
}

uint32_t read_count(wire::FieldReader& in, const char* field, uint64_t count, uint64_t most) {
  if (in.ok() && (count == 0 || count > most)) in.reject(field, "is out of bounds", count);
  return in.ok() ? static_cast<uint32_t>(count) : 0;
}

bool message_fits(MessageSpan in) noexcept { return in.size() <= kMaxMessageBytes; }

Status too_long(MessageSpan in) {
  return Status(Reason::kTooLarge,
                fmt::format("a message of {} bytes, the limit is {}", in.size(), kMaxMessageBytes));
}

void read_pieces(wire::FieldReader& in, uint32_t count, GrantBody& body) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    GrantPiece piece;
    piece.region = in.get<uint32_t>("piece.region");
    in.get_zero<uint32_t>("piece.zero");
    piece.offset = in.get<uint64_t>("piece.offset");
    piece.bytes = in.get<uint64_t>("piece.bytes");
    if (piece.region != kPoolRegion && piece.region >= body.regions.size()) {
      in.reject("piece.region", "is out of bounds", piece.region);
    }
    if (piece.offset > UINT64_MAX - kMaxPayloadBytes) {
      in.reject("piece.offset", "is out of bounds", piece.offset);
    }
    if (piece.bytes == 0 || piece.bytes > body.bytes - total) {
      in.reject("piece.bytes", "is not within the payload", piece.bytes);
    }
    total += piece.bytes;
    body.pieces.push_back(piece);
  }
  if (in.ok() && total != body.bytes) in.reject("bytes", "is not the sum of the pieces", total);
}

}  // namespace

bool is_pull_message(MessageSpan in) noexcept {
  uint32_t magic = 0;
  if (in.size() < kHeaderBytes) return false;
  std::memcpy(&magic, in.data(), sizeof magic);
  return magic == kMessageMagic;
}

Result<MessageType> message_type(MessageSpan in) {
  wire::FieldReader reader("pull message", in);
  const auto magic = reader.get<uint32_t>("magic");
  const auto major = reader.get<uint16_t>("major");
  const auto minor = reader.get<uint16_t>("minor");
  const auto type = reader.get<uint16_t>("type");
  if (magic != kMessageMagic) reader.reject("magic", "is not ours", magic);
  if (!reader.ok()) return reader.finish();
  if (major != kProtocolMajor || minor + 1 < kProtocolMinor || minor > kProtocolMinor + 1) {
    return Status(Reason::kVersion, fmt::format("the peer speaks version {}.{}, this one {}.{}",
                                                major, minor, kProtocolMajor, kProtocolMinor));
  }
  reader.get_zero<uint16_t>("zero");
  if (type < static_cast<uint16_t>(MessageType::kHello) ||
      type > static_cast<uint16_t>(MessageType::kAnswers)) {
    reader.reject("type", "is unknown", type);
  }
  SL_TRY(reader.finish(true));
  return static_cast<MessageType>(type);
}

void encode(const HelloMessage& hello, Message& out) {
  MessageWriter writer(out, MessageType::kHello);
  writer.put_id(hello.receiver);
}

Status decode(MessageSpan in, HelloMessage& out) {
  auto reader = body_of("hello", in);
  out.receiver = reader.get_instance("receiver");
  return reader.finish(true);
}

void encode(const WelcomeMessage& welcome, Message& out) {
  MessageWriter writer(out, MessageType::kWelcome);
  writer.put_id(welcome.life);
  writer.put_id(welcome.host);
  writer.put(welcome.claim_ms);
  writer.put_region(welcome.pool);
  writer.put_region(welcome.stamps);
  writer.put_text(welcome.socket_path);
  writer.put_text(welcome.plane);
  writer.put(static_cast<uint16_t>(welcome.engine.size()));
  writer.put_bytes(welcome.engine);
}

Status decode(MessageSpan in, WelcomeMessage& out) {
  auto reader = body_of("welcome", in);
  out.life = reader.get_instance("life");
  out.host = reader.get_instance("host");
  out.claim_ms = reader.get<uint32_t>("claim_ms");
  out.pool = read_region(reader, "pool");
  out.stamps = read_region(reader, "stamps");
  out.socket_path = reader.get_text("socket_path", kMaxPathBytes);
  out.plane = reader.get_text("plane", wire::kMaxAddressBytes);
  const size_t size = reader.get<uint16_t>("engine");
  if (size > wire::kMaxEngineDescBytes) reader.reject("engine", "is too long, bytes", size);
  const auto engine = reader.get_bytes("engine", size);
  out.engine.assign(engine.begin(), engine.end());
  return reader.finish(true);
}

void encode(const ClaimMessage& claim, Message& out) {
  MessageWriter writer(out, MessageType::kClaim);
  writer.put_id(claim.receiver);
  writer.put_id(claim.life);
  writer.put(claim.wait_ms);
  writer.put(static_cast<uint16_t>(claim.entries.size()));
  writer.put(uint16_t{0});
  for (const ClaimEntry& entry : claim.entries) {
    writer.put(entry.id);
    writer.put(entry.generation);
    writer.put_text(entry.key);
  }
  writer.put(claim.takes_answers ? kTakesAnswers : uint32_t{0});
}

Status decode(MessageSpan in, ClaimMessage& out) {
  if (!message_fits(in)) return too_long(in);
  auto reader = body_of("claim", in);
  out.receiver = reader.get_instance("receiver");
  out.life = reader.get_instance("life");
  out.wait_ms = std::min(reader.get<uint32_t>("wait_ms"), kMaxWaitMs);
  const uint32_t count =
      read_count(reader, "count", reader.get<uint16_t>("count"), kMaxClaimEntries);
  reader.get_zero<uint16_t>("zero");
  out.entries.clear();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    ClaimEntry entry;
    entry.id = reader.get<uint64_t>("id");
    entry.generation = reader.get<uint64_t>("generation");
    const size_t size = reader.get<uint16_t>("key");
    if (size == 0 || size > kMaxKeyBytes) reader.reject("key", "is out of bounds, bytes", size);
    const auto key = reader.get_bytes("key", size);
    entry.key = {reinterpret_cast<const char*>(key.data()), key.size()};
    out.entries.push_back(entry);
  }
  out.takes_answers =
      reader.left() >= sizeof(uint32_t) && (reader.get<uint32_t>("flags") & kTakesAnswers) != 0;
  return reader.finish(true);
}

Message encode_body(const GrantBody& body) {
  Message out;
  MessageWriter writer(out);
  writer.put(body.generation);
  writer.put(body.bytes);
  writer.put(body.stamp_offset);
  writer.put(body.is_fast_path ? kFastPath : uint32_t{0});
  writer.put(static_cast<uint32_t>(body.pieces.size()));
  writer.put(static_cast<uint32_t>(body.regions.size()));
  for (const RegionDesc& region : body.regions) writer.put_region(region);
  for (const GrantPiece& piece : body.pieces) {
    writer.put(piece.region);
    writer.put(uint32_t{0});
    writer.put(piece.offset);
    writer.put(piece.bytes);
  }
  return out;
}

void encode_grant(const Grant& head, MessageSpan body, Message& out) {
  MessageWriter writer(out, MessageType::kGrant);
  writer.put(head.id);
  writer.put(head.parked_ms);
  writer.put(head.claim_ms);
  writer.put_bytes(body);
}

Status decode(MessageSpan in, Grant& out) {
  if (!message_fits(in)) return too_long(in);
  auto reader = body_of("grant", in);
  out.id = reader.get<uint64_t>("id");
  out.parked_ms = reader.get<uint32_t>("parked_ms");
  out.claim_ms = reader.get<uint32_t>("claim_ms");
  GrantBody& body = out.body;
  body.generation = reader.get<uint64_t>("generation");
  body.bytes = reader.get<uint64_t>("bytes");
  if (reader.ok() && (body.bytes == 0 || body.bytes > kMaxPayloadBytes)) {
    reader.reject("bytes", "is out of bounds", body.bytes);
  }
  body.stamp_offset = reader.get<uint64_t>("stamp_offset");
  body.is_fast_path = (reader.get<uint32_t>("flags") & kFastPath) != 0;
  const uint32_t pieces =
      read_count(reader, "piece_count", reader.get<uint32_t>("piece_count"), kMaxGrantPieces);
  const uint64_t regions = reader.get<uint32_t>("region_count");
  if (regions > kMaxGrantRegions) reader.reject("region_count", "is out of bounds", regions);
  body.regions.clear();
  body.pieces.clear();
  for (uint64_t i = 0; i < regions && reader.ok(); ++i) {
    body.regions.push_back(read_region(reader, "region"));
  }
  read_pieces(reader, pieces, body);
  return reader.finish(true);
}

namespace {

void encode_no(MessageType type, const Denial& denial, Message& out) {
  MessageWriter writer(out, type);
  writer.put(denial.id);
  writer.put(wire::pack_reason(denial.reason));
  writer.put_text(to_plain_text(denial.why, kMaxWhyBytes));
}

}  // namespace

void encode(const Denial& denial, Message& out) { encode_no(MessageType::kDenial, denial, out); }

void encode_refusal(const Denial& refusal, Message& out) {
  encode_no(MessageType::kRefusal, refusal, out);
}

Status decode(MessageSpan in, Denial& out) {
  auto reader = body_of("denial", in);
  out.id = reader.get<uint64_t>("id");
  const auto packed = reader.get<uint16_t>("reason");
  const auto reason = wire::unpack_reason(packed);
  if (!reason.has_value() || *reason == Reason::kOk) {
    reader.reject("reason", "is unknown", packed);
  } else {
    out.reason = *reason;
  }
  out.why = reader.get_text("why", kMaxWhyBytes);
  return reader.finish(true);
}

void encode(const ReleaseMessage& release, Message& out) {
  MessageWriter writer(out, MessageType::kRelease);
  writer.put_id(release.receiver);
  writer.put_id(release.life);
  writer.put(static_cast<uint16_t>(release.entries.size()));
  writer.put(uint16_t{0});
  for (const ReleaseEntry& entry : release.entries) {
    writer.put(entry.id);
    writer.put(static_cast<uint8_t>(entry.consumed ? 1 : 0));
  }
}

Status decode(MessageSpan in, ReleaseMessage& out) {
  auto reader = body_of("release", in);
  out.receiver = reader.get_instance("receiver");
  out.life = reader.get_instance("life");
  const uint32_t count =
      read_count(reader, "count", reader.get<uint16_t>("count"), kMaxReleaseEntries);
  reader.get_zero<uint16_t>("zero");
  out.entries.clear();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    ReleaseEntry entry;
    entry.id = reader.get<uint64_t>("id");
    const auto consumed = reader.get<uint8_t>("consumed");
    if (consumed > 1) reader.reject("consumed", "is neither 0 nor 1", consumed);
    entry.consumed = consumed == 1;
    out.entries.push_back(entry);
  }
  return reader.finish(true);
}

void begin_answers(Message& out) {
  MessageWriter writer(out, MessageType::kAnswers);
  writer.put(uint16_t{0});
  writer.put(uint16_t{0});
}

bool add_answer(MessageSpan answer, Message& out) {
  uint16_t count = 0;
  std::memcpy(&count, out.data() + kHeaderBytes, sizeof count);
  if (count == kMaxClaimEntries || answer.size() + sizeof(uint32_t) > kMaxMessageBytes - out.size())
    return false;
  ++count;
  std::memcpy(out.data() + kHeaderBytes, &count, sizeof count);
  MessageWriter writer(out);
  writer.put(static_cast<uint32_t>(answer.size()));
  writer.put_bytes(answer);
  return true;
}

Status decode_answers(MessageSpan in, std::vector<MessageSpan>& out) {
  out.clear();
  auto reader = body_of("answers", in);
  const uint32_t count =
      read_count(reader, "count", reader.get<uint16_t>("count"), kMaxClaimEntries);
  reader.get_zero<uint16_t>("zero");
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    const auto answer = reader.get_bytes("answer", reader.get<uint32_t>("length"));
    if (!reader.ok()) break;
    SL_ASSIGN(const MessageType type, message_type(answer));
    if (type != MessageType::kGrant && type != MessageType::kDenial) {
      reader.reject("answer", "is neither a grant nor a denial, type", static_cast<uint64_t>(type));
    }
    out.push_back(answer);
  }
  return reader.finish(true);
}

}  // namespace stagelink::pull
