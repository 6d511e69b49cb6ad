#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagelink::moriio {

using Bytes = std::vector<std::byte>;

// Of the extra fields and of the messages that only peers with a version understand.
inline constexpr uint32_t kMessageVersion = 1;

// Bounds of what a peer may send. Vectors of the largest size stay within the frame.
inline constexpr size_t kMaxNotifyBytes = 4 << 20;
inline constexpr size_t kMaxHandshakeBytes = 64 << 20;
inline constexpr size_t kMaxHeartbeatBytes = 16 << 10;
inline constexpr size_t kMaxIdBytes = 1024;
inline constexpr size_t kMaxBlocks = 512 << 10;  // In one list; of all lists of one message too.
inline constexpr size_t kMaxBlockGroups = 64;
inline constexpr int64_t kMaxBlockId = 0x7fffffff;
inline constexpr uint32_t kMaxTpSize = 1024;
inline constexpr uint32_t kMaxDpRank = 0xffff;

// What a peer of vLLM 0.32 neither sends nor looks at: keys beside those of its messages. Absent is
// not sent.
struct MessageExtras {
  std::optional<uint32_t> version;         // kMessageVersion of the sender.
  std::optional<std::string> compat_hash;  // block_layout::compat_hash().
  std::optional<std::string> incarnation;  // Names one life of the sender's process.
  std::optional<std::string> status;    // Why a transfer ended: `ok`, or a reason's name and text.
  std::optional<uint64_t> first_block;  // Index within the request of the first block of the list.
  std::optional<std::string> token;     // Secret of one transfer: who may end or redirect it.
  std::optional<uint32_t> tp_size;      // Of the sender.
  std::optional<uint32_t> tp_rank;      // Of the sender: fan-in counts ranks, not messages.
  std::optional<uint32_t> writes;       // write_done: how many ranks write to this receiver.
  // remote_blocks of a cache with several groups: one list each, in the order of the groups. The
  // plain list is the first of them.
  std::vector<std::vector<int64_t>> block_groups;
  friend bool operator==(const MessageExtras&, const MessageExtras&) = default;
};

}  // namespace stagelink::moriio
