#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <pthread.h>

#include "stagelink/result.h"

// What an arena file looks like, from its first byte:
//
//   Header | Slot[max_objects + 1] | index: u64[index_size] | heap: capacity bytes
//
// Each part begins at a page. Little-endian, offsets only, no pointers but those that the mutex
// keeps for the thread that holds it.
//
// 1. The slots are the truth. Lists, index, gaps and sums are made from them by rebuild.cc,
// whenever
//    the lock's holder has died or something does not fit.
// 2. A slot changes its state by one store of its tag. What the new state needs is stored before.
// 3. Nobody but the lock's holder stores anything here, except: views (Slot::viewers), wait words,
//    and the payload of an object by its writer.
// 4. What is read here may be anything: indices and offsets are checked where they are used.
namespace stagelink::store::shm {

inline constexpr uint64_t kMagic = 0x31414e4552414c73;  // "sLARENA1"
inline constexpr uint32_t kLayoutMajor = 1;
inline constexpr uint32_t kLayoutMinor = 0;

inline constexpr uint32_t kNone = 0xffffffff;  // No slot, no member, no bin.
inline constexpr uint32_t kMaxMembers = 256;   // Stores that have the arena open.
inline constexpr uint32_t kViewerWords = kMaxMembers / 64;
inline constexpr uint32_t kWaitWords = 1024;
inline constexpr uint32_t kGraves = 4096;
inline constexpr uint32_t kBins = 448;
inline constexpr uint64_t kUnit = 64;  // Objects begin at multiples of it.
inline constexpr uint32_t kInlineKeyBytes = 128;
inline constexpr uint32_t kMaxKeyBytes = 1024;
inline constexpr uint32_t kMaxObjects = 1 << 24;
inline constexpr uint64_t kMaxCapacity = uint64_t{1} << 46;
inline constexpr uint64_t kMaxGeneration = uint64_t{1} << 55;

// A word that other processes may see or change at any time. get() and set() order nothing: they
// are for what the lock's holder stores.
template <typename T>
struct Cell {
  std::atomic<T> word{};
  T get() const noexcept { return word.load(std::memory_order_relaxed); }
  void set(T value) noexcept { word.store(value, std::memory_order_relaxed); }
};

enum class SlotState : uint8_t { kFree = 0, kWriting = 1, kSealed = 2, kRetired = 3 };

// State and generation in one word, so that they change together. A generation is never used twice
// in an arena, so equal tags mean the same object in the same state.
struct Tag {
  uint64_t word = 0;
  SlotState state() const noexcept { return static_cast<SlotState>(word & 0xff); }
  uint64_t generation() const noexcept { return word >> 8; }
  static Tag of(SlotState state, uint64_t generation) noexcept {
    return {generation << 8 | static_cast<uint64_t>(state)};
  }
  friend bool operator==(Tag, Tag) = default;
};

struct alignas(64) Slot {
  std::atomic<uint64_t> tag;
  Cell<uint64_t> hash;
  Cell<uint64_t> offset;  // In the heap.
  Cell<uint64_t> size;
  Cell<uint64_t> expiry_ns;  // CLOCK_MONOTONIC, which all processes of a host share; 0: never.
  Cell<uint64_t> sealed_ns;
  Cell<uint32_t> key_bytes;
  Cell<uint32_t> owner;  // The writer's member, while it is being written.
  // The list of sealed objects, oldest first, or that of retired ones, or of free slots (next).
  Cell<uint32_t> list_prev;
  Cell<uint32_t> list_next;

  // A bit for each member that has a view (or looks whether it wants one).
  std::array<std::atomic<uint64_t>, kViewerWords> viewers;
  // Neighbours in the heap, and the list of gaps of one size: a gap goes by the slot before it.
  Cell<uint32_t> heap_prev;
  Cell<uint32_t> heap_next;
  Cell<uint32_t> gap_prev;
  Cell<uint32_t> gap_next;
  Cell<uint32_t> gap_bin;  // kNone: no gap behind this one.
  std::array<uint32_t, 3> reserved;

  // A longer key stands behind the object's bytes.
  std::array<Cell<uint8_t>, kInlineKeyBytes> key;
};
static_assert(sizeof(Slot) == 256);

struct alignas(64) Member {
  Cell<uint32_t> used;  // Stored last when a member joins, first when it leaves.
  Cell<int32_t> pid;
  Cell<uint64_t> start_time;
  Cell<uint64_t> pid_namespace;
  std::array<uint64_t, 5> reserved;
};
static_assert(sizeof(Member) == 64);

enum class ArenaState : uint32_t {
  kMaking = 0,
  kReady = 1,
  kRemoved = 2,
  kBroken = 3,  // The slots contradict each other.
};

struct alignas(64) Header {
  // What never changes.
  Cell<uint64_t> magic;
  Cell<uint32_t> major;
  Cell<uint32_t> minor;
  Cell<uint64_t> total_bytes;
  Cell<uint64_t> capacity;
  Cell<uint32_t> max_objects;
  Cell<uint32_t> lock_bytes;  // sizeof(pthread_mutex_t) of whoever made it.
  Cell<uint64_t> hash_seed;
  std::atomic<uint32_t> state;
  Cell<uint32_t> keep;  // The last to leave does not remove the arena. Once set it stays.

  alignas(64) pthread_mutex_t lock;
  alignas(64) Cell<int32_t> lock_holder;  // pid, for messages.
  Cell<uint32_t> slots_high;              // Slots from here on have never been used.
  Cell<uint64_t> next_generation;

  // Made from the slots.
  Cell<uint64_t> used_bytes;
  Cell<uint32_t> objects;  // Sealed.
  Cell<uint32_t> free_head;
  Cell<uint32_t> oldest;  // The list of sealed objects.
  Cell<uint32_t> newest;
  Cell<uint32_t> retired_head;
  Cell<uint32_t> index_graves;        // Entries of the index that were taken out.
  Cell<uint64_t> earliest_expiry_ns;  // Nothing expires before; 0: nothing does.
  std::array<Cell<uint64_t>, kBins / 64> gap_bits;
  std::array<Cell<uint32_t>, kBins> gap_heads;

  // Since the arena was made.
  alignas(64) Cell<uint64_t> evictions;
  Cell<uint64_t> expirations;
  Cell<uint64_t> recoveries;  // Of the lock, from a holder that died.

  alignas(64) std::atomic<uint32_t> index_epoch;  // Odd while the index is made anew.
  alignas(64) std::atomic<uint32_t> space_word;
  alignas(64) std::array<Member, kMaxMembers> members;
  std::array<std::atomic<uint32_t>, kWaitWords> wait_words;
  // Why an object of a hash went: the hash but for its lowest two bits, and a Grave.
  std::array<Cell<uint64_t>, kGraves> graves;
};

enum class Grave : uint8_t { kEmpty = 0, kExpired = 1, kEvicted = 2 };

// An entry of the index: slot + 1 in the lower half, the upper half of the hash in the upper.
inline constexpr uint32_t kIndexEmpty = 0;
inline constexpr uint32_t kIndexGrave = 0xffffffff;

// Where the parts begin.
struct Geometry {
  uint64_t capacity = 0;
  uint32_t max_objects = 0;
  uint64_t index_size = 0;  // A power of two.
  uint64_t slots_at = 0;
  uint64_t index_at = 0;
  uint64_t heap_at = 0;
  uint64_t total_bytes = 0;

  // `capacity` is rounded up to whole pages. Both within the limits above.
  static Geometry of(uint64_t capacity, uint32_t max_objects) noexcept;
};

// The first bytes of a file of `file_bytes` as an arena's, or why they are not. Errors: corrupt,
// incompatible (version).
Result<Geometry> check_header(const Header& header, uint64_t file_bytes);

// Bytes that an object takes from the heap.
uint64_t span_of(uint64_t size, uint64_t key_bytes) noexcept;

}  // namespace stagelink::store::shm
