#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "connector/moriio/messages/message_fields.h"
#include "stagelink/status.h"

namespace stagelink::moriio {

// What a rank does: prefill engines produce, decode engines consume.
enum class Role : uint8_t { kAny, kProducer, kConsumer };

enum class EventKind : uint8_t {
  kSent,  // Producer: the transfer is over, its blocks may be freed. `outcome` tells how it ended.
  kReceived,  // Consumer: the blocks are in place, or (outcome not ok) will not come.
  kRenewed,   // Producer: the consumer still reads.
  kOverdue,   // The deadline given to expect() has passed; the transfer has not ended.
};
std::string_view event_name(EventKind kind) noexcept;

// Told to the scheduler. kSent and kReceived come once for each transfer.
struct TransferEvent {
  EventKind kind = EventKind::kSent;
  std::string transfer_id;
  Status outcome;
};

// As vLLM 0.32 counts: one for each release, of a consumer with that many ranks.
struct TransferAck {
  std::string transfer_id;
  uint32_t consumer_tp_size = 1;
  friend bool operator==(const TransferAck&, const TransferAck&) = default;
};

// What remote_blocks said: where the blocks of a transfer go.
struct Allocation {
  std::string request_id;
  std::vector<int64_t> block_ids;
  uint32_t decode_rank = 0;
  MessageExtras extras;
};

}  // namespace stagelink::moriio
