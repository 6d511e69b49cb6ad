#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "cli/replay/workload/layout.h"
#include "cli/replay/workload/workload.h"
#include "stagelink/result.h"

// What a decode rank and a prefill rank say to each other, each message one notification:
//
//   decode                                    prefill
//   Hello   (engine, pool, layout)       ->   connects back
//                                        <-   Hello
//   Ask     (keys; blocks to push into)  ->   fills what is new, leases all
//                                             write mode: pushes; sent after the transfer:
//                                        <-   Ready (blocks, checksums)
//   pulls (read mode), checks
//   Again   (positions that were wrong)  ->   write mode: pushes them once more, Ready again
//   Done                                 ->   ends the leases
//                                        <-   Failed (reason): this attempt is over
//
// Layout, little-endian: u16 magic, u8 version, u8 type, u32 request, u32 attempt, then the body.
// Hello: u32 rank, 6 x u32 layout, u16 length + descriptor, u16 length + packed RegionDesc. Lists:
// u32 first, u32 total, u32 count, then `count` records, cut into parts that fit a notification.
namespace stagelink::cli::replay {

struct Hello {
  uint32_t rank = 0;
  Layout layout;  // Must equal the receiver's but for pool_blocks.
  std::vector<std::byte> descriptor;
  std::vector<std::byte> region;
};
struct AskRecord {
  BlockKey key;
  uint32_t block = 0;  // At the asker, to push into.
};
struct ReadyRecord {
  uint32_t block = 0;     // At the owner, to pull from.
  uint64_t checksum = 0;  // Of the block, see checksum.h; 0 if checksums are off.
};

// Records [first, first + records.size()) of a list of `total`.
template <typename Record>
struct ListPart {
  uint32_t first = 0;
  uint32_t total = 0;
  std::vector<Record> records;
  bool last() const noexcept { return first + records.size() == total; }
};
using AskPart = ListPart<AskRecord>;
using ReadyPart = ListPart<ReadyRecord>;
using AgainPart = ListPart<uint32_t>;
struct Done {};
struct Failed {
  Reason reason = Reason::kOk;
};

struct PairMessage {
  uint32_t request = 0;
  uint32_t attempt = 0;  // An answer to an earlier attempt is stale.
  std::variant<Hello, AskPart, ReadyPart, AgainPart, Done, Failed> body;
};

inline constexpr uint32_t kMaxListRecords = 1 << 22;
// So that several parts fit the notification ring of a peer at once.
inline constexpr size_t kMaxPartBytes = 4096;

std::vector<std::byte> encode(const PairMessage& message);
// Errors: incompatible (version), corrupt (frame).
Result<PairMessage> decode_pair_message(std::span<const std::byte> bytes);

// How many records of this size one part takes.
constexpr size_t records_per_part(size_t record_bytes) {
  return (kMaxPartBytes - 64) / record_bytes;
}

// One message for each part; at least one, even if `records` is empty.
std::vector<PairMessage> in_parts(uint32_t request, uint32_t attempt,
                                  std::span<const AskRecord> records);
std::vector<PairMessage> in_parts(uint32_t request, uint32_t attempt,
                                  std::span<const ReadyRecord> records);
std::vector<PairMessage> in_parts(uint32_t request, uint32_t attempt,
                                  std::span<const uint32_t> positions);

// Puts the parts of a list together again; they arrive in order. Errors: corrupt (frame) for a gap,
// a change of the total, or more than kMaxListRecords.
template <typename Record>
Status append_part(std::vector<Record>& list, const ListPart<Record>& part);

}  // namespace stagelink::cli::replay
