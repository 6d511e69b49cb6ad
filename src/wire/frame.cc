#include "wire/frame.h"

#include <cstring>

#include "wire/batch_header.h"
#include "wire/field_reader.h"
#include "wire/notify_record.h"
#include "wire/staged.h"

namespace stagelink::wire {
namespace {

bool is_known(FrameType type) noexcept {
  return type >= FrameType::kHello && type <= FrameType::kStagedAck;
}

template <typename T>
void place(std::array<std::byte, kFrameHeaderBytes>& out, size_t offset, T value) noexcept {
  std::memcpy(out.data() + offset, &value, sizeof(T));
}

}  // namespace

std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) noexcept {
  std::array<std::byte, kFrameHeaderBytes> out{};
  place(out, 0, kFrameMagic);
  place(out, 4, header.type);
  place(out, 6, header.flags);
  place(out, 8, header.payload_bytes);
  place(out, 12, header.fd_count);
  place(out, 16, header.request_id);
  return out;
}

Result<FrameHeader> decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> in) {
  FieldReader reader("frame", in);
  if (const auto magic = reader.get<uint32_t>("magic"); magic != kFrameMagic) {
    reader.reject("magic", "is not that of a frame", magic);
  }
  FrameHeader header;
  header.type = reader.get<FrameType>("type");
  if (!is_known(header.type)) {
    reader.reject("type", "is unknown", static_cast<uint64_t>(header.type));
  }
  reader.get_zero<uint16_t>("flags");
  header.payload_bytes = reader.get<uint32_t>("payload_bytes");
  if (header.payload_bytes > max_payload_bytes(header.type)) {
    reader.reject("payload_bytes", "is too large", header.payload_bytes);
  }
  header.fd_count = reader.get<uint32_t>("fd_count");
  if (header.fd_count > max_fds(header.type)) {
    reader.reject("fd_count", "is too large", header.fd_count);
  }
  header.request_id = reader.get<uint64_t>("request_id");
  SL_TRY(reader.finish());
  return header;
}

uint32_t max_payload_bytes(FrameType type) noexcept {
  switch (type) {
    case FrameType::kHello:
    case FrameType::kWelcome:
    case FrameType::kRefuse:
    case FrameType::kRegion:
    case FrameType::kDone:
    case FrameType::kNotify: return kMaxControlBytes;
    case FrameType::kGetRegion: return kRegionRefBytes;
    case FrameType::kNotifyAck: return kNotifyAckBytes;
    case FrameType::kRead:
    case FrameType::kWrite: return kMaxBatchBytes;
    case FrameType::kData: return kMaxDataBytes;
    case FrameType::kChallenge: return kChallengeBytes;
    case FrameType::kProof: return kProofBytes;
    case FrameType::kStaged:
    case FrameType::kStagedAck: return kStagedBytes;
    case FrameType::kPing:
    case FrameType::kPong:
    case FrameType::kCancel:
    case FrameType::kBye: return 0;
  }
  return 0;
}

uint32_t max_fds(FrameType type) noexcept {
  switch (type) {
    case FrameType::kHello:
    case FrameType::kWelcome:
    case FrameType::kRegion: return kMaxFds;
    default: return 0;
  }
}

const char* frame_name(FrameType type) noexcept {
  switch (type) {
    case FrameType::kHello: return "hello";
    case FrameType::kWelcome: return "welcome";
    case FrameType::kRefuse: return "refuse";
    case FrameType::kPing: return "ping";
    case FrameType::kPong: return "pong";
    case FrameType::kGetRegion: return "get_region";
    case FrameType::kRegion: return "region";
    case FrameType::kRead: return "read";
    case FrameType::kWrite: return "write";
    case FrameType::kData: return "data";
    case FrameType::kDone: return "done";
    case FrameType::kCancel: return "cancel";
    case FrameType::kNotify: return "notify";
    case FrameType::kBye: return "bye";
    case FrameType::kNotifyAck: return "notify_ack";
    case FrameType::kChallenge: return "challenge";
    case FrameType::kProof: return "proof";
    case FrameType::kStaged: return "staged";
    case FrameType::kStagedAck: return "staged_ack";
  }
  return "unknown";
}

}  // namespace stagelink::wire
