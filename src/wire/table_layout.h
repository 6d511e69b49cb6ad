#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

// The region table: a memfd that its owner writes and same-host peers map read-only (sealed against
// other writers). Header page, then `capacity` entries of 64 bytes.
//
// A row is live when the low bit of `state` is set; the rest is its generation. Fields of a row are
// written before `state` makes it live, and a reader checks `state` again after it has used them.
namespace stagelink::wire {

inline constexpr uint64_t kTableMagic = 0x31656c6261546c53;  // "SlTable1"

// What the header begins with. It stays as it is while the engine lives, and no two engines have
// the same: a peer that copies with process_vm_readv reads it out of the owner's memory to know
// whose memory that is.
struct TableIdentity {
  uint64_t magic;
  uint16_t version_major;
  uint16_t version_minor;
  uint32_t capacity;
  uint64_t instance_high;
  uint64_t instance_low;
  friend bool operator==(const TableIdentity&, const TableIdentity&) = default;
};

// Padded: words that are written often have cache lines of their own.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct TableHeader {
  uint64_t magic;
  uint16_t version_major;
  uint16_t version_minor;
  uint32_t capacity;
  uint64_t instance_high;
  uint64_t instance_low;
  uint32_t pid;
  uint32_t entry_bytes;
  // Since 1.1: where this header lies in the owner's memory, or 0: its memory is not to be read or
  // written with process_vm_readv.
  uint64_t identity_address;
  // Grows by one with each deregistration, after the row's generation has passed.
  alignas(64) std::atomic<uint64_t> epoch;
  // Not 0 while the owner sleeps until an access lane is cleared.
  alignas(64) std::atomic<uint32_t> lane_waiters;
  // Rows at or beyond this were never used.
  alignas(64) std::atomic<uint32_t> rows_used;
};

struct alignas(64) TableEntry {
  std::atomic<uint64_t> state;  // generation << 1 | live
  std::atomic<uint64_t> address;
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> nonce;
  std::atomic<uint32_t> flags;
};

enum TableFlags : uint32_t { kFlagShareable = 1, kFlagPeersMayWrite = 2 };

inline constexpr size_t kTableEntriesOffset = 4096;
constexpr size_t table_bytes(uint32_t capacity) noexcept {
  return kTableEntriesOffset + size_t{capacity} * sizeof(TableEntry);
}

static_assert(sizeof(TableEntry) == 64);
static_assert(sizeof(TableHeader) <= kTableEntriesOffset);
static_assert(sizeof(TableIdentity) == 32);
static_assert(offsetof(TableHeader, instance_low) == offsetof(TableIdentity, instance_low));
static_assert(offsetof(TableHeader, identity_address) == 40);
static_assert(offsetof(TableHeader, epoch) == 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Behind the data of every shareable segment, in a page of its own: proves that an fd is the memory
// that a descriptor speaks of.
inline constexpr uint64_t kTrailerMagic = 0x317265696172546c;
struct SegmentTrailer {
  uint64_t magic;
  uint64_t instance_high;
  uint64_t instance_low;
  uint64_t nonce;
  uint64_t bytes;  // Of the data, before rounding to pages.
};

}  // namespace stagelink::wire
