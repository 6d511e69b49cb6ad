#include "wire/notify_record.h"

#include <cstring>

#include "wire/field_reader.h"
#include "wire/reason_code.h"

namespace stagelink::wire {

std::array<std::byte, kNotifyHeaderBytes> encode_notify_header(Reason outcome,
                                                               uint32_t payload_bytes) noexcept {
  std::array<std::byte, kNotifyHeaderBytes> out{};
  const uint16_t reason = pack_reason(outcome);
  std::memcpy(out.data(), &payload_bytes, sizeof(payload_bytes));
  std::memcpy(out.data() + 4, &reason, sizeof(reason));
  return out;
}

Result<NotifyRecord> decode_notify(std::span<const std::byte> in) {
  FieldReader reader("notification", in);
  const auto payload_bytes = reader.get<uint32_t>("payload_bytes");
  const auto packed = reader.get<uint16_t>("outcome");
  NotifyRecord record;
  if (const auto reason = unpack_reason(packed); reason.has_value()) {
    record.outcome = *reason;
  } else {
    reader.reject("outcome", "has an unknown code", packed);
  }
  reader.get_zero<uint16_t>("reserved");
  record.payload = reader.get_bytes("payload", payload_bytes);
  SL_TRY(reader.finish(true));
  return record;
}

std::array<std::byte, kNotifyAckBytes> encode(const NotifyAck& ack) noexcept {
  std::array<std::byte, kNotifyAckBytes> out{};
  std::memcpy(out.data(), &ack.taken, sizeof(ack.taken));
  return out;
}

Result<NotifyAck> decode_notify_ack(std::span<const std::byte> in) {
  FieldReader reader("notify_ack", in);
  const NotifyAck ack{reader.get<uint64_t>("taken")};
  if (ack.taken % 8 != 0) reader.reject("taken", "is no multiple of 8", ack.taken);
  SL_TRY(reader.finish());
  return ack;
}

}  // namespace stagelink::wire
