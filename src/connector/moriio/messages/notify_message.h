#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "connector/moriio/messages/message_fields.h"
#include "stagelink/result.h"

// What goes to a notify port: one frame, a MessagePack map or a bare id.
//
//   type           direction   keys, in the order in which they are sent
//   remote_blocks  D -> P      req_id transfer_id block_notify_list decode_rank type
//   write_done     P -> D      type transfer_id
//   write_failed   P -> D      type transfer_id
//   release        D -> P      type transfer_id consumer_tp_size
//   renew          D -> P      type transfer_id
//   (legacy)       either      the id as UTF-8, no map
//
// write_failed and renew are not known to vLLM 0.32, whose listener ends on them: they go to peers
// whose handshake had a version. Extra fields follow the keys above.
namespace stagelink::moriio {

// Decode has allocated: where the blocks of a transfer go.
struct RemoteBlocks {
  std::string request_id;
  std::string transfer_id;         // The request id where the sender has none.
  std::vector<int64_t> block_ids;  // Empty: nothing to write, the transfer is over.
  uint32_t decode_rank = 0;        // Global data parallel rank of the decode engine.
  MessageExtras extras;
  friend bool operator==(const RemoteBlocks&, const RemoteBlocks&) = default;
};

// Every block is in the decode engine's memory.
struct WriteDone {
  std::string transfer_id;
  MessageExtras extras;
  friend bool operator==(const WriteDone&, const WriteDone&) = default;
};

// The blocks will not come; extras.status says why. Nothing is written after it.
struct WriteFailed {
  std::string transfer_id;
  MessageExtras extras;
  friend bool operator==(const WriteFailed&, const WriteFailed&) = default;
};

// Decode does not touch the prefill engine's blocks any more, or does not want them.
struct Release {
  std::string transfer_id;
  uint32_t consumer_tp_size = 1;
  MessageExtras extras;
  friend bool operator==(const Release&, const Release&) = default;
};

// Decode still reads: the lease of the prefill engine's blocks begins anew.
struct Renew {
  std::string transfer_id;
  MessageExtras extras;
  friend bool operator==(const Renew&, const Renew&) = default;
};

// A bare id: one acknowledgement for a producer, "write done" for a consumer.
struct LegacyId {
  std::string id;
  friend bool operator==(const LegacyId&, const LegacyId&) = default;
};

using NotifyMessage = std::variant<RemoteBlocks, WriteDone, WriteFailed, Release, Renew, LegacyId>;

// "remote_blocks", ..., "legacy": for logs and counters.
std::string_view message_type(const NotifyMessage& message) noexcept;
// Of the transfer that a message speaks of; a legacy id is one itself.
const std::string& transfer_id(const NotifyMessage& message) noexcept;

// Accepts any order of keys and ignores unknown ones. Errors: corrupt (frame) and limit
// (too_large), which name the type and the key that is missing, of the wrong kind or out of range;
// invalid_argument (unsupported) for a map with another type. Never throws.
Result<NotifyMessage> decode_notify_message(std::span<const std::byte> frame);

// Byte for byte what vLLM 0.32 sends where no extra field is set. Errors: those of the decoder, so
// that nothing is sent that a peer would refuse.
Result<Bytes> encode(const NotifyMessage& message);

}  // namespace stagelink::moriio
