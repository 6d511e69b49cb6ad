#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// Payloads on the wire. Two forms, told apart by the first byte:
//
//   compat  MessagePack without extensions, byte for byte what vLLM-Omni's OmniSerializer writes.
//           An array is a map of four entries with its bytes among them.
//   fast    0xC1, which no MessagePack begins with; the arrays lie behind everything else, each
//           aligned to 64 bytes:
//
//   offset  bytes
//   0       1       0xC1
//   1       1       version, 1
//   2       1       flags: 1 = the sum is there
//   3       1       0
//   4       4       n, bytes of the skeleton
//   8       8       bytes of the whole frame
//   16      8       XXH3-64 of all bytes but these 8, or 0
//   24      n       skeleton: one MessagePack value with the extensions below
//   ..              for each array and each long byte string of the skeleton, in its order: zeros
//                   up to a multiple of 64, then its bytes in C order
//
//   ext 1   an array: u8 kind, u8 rank, u8 d, u8 m, d bytes of dtype, m bytes of image mode, then
//           u64 for each extent
//   ext 2   a byte string: u64 length
//   ext 3   the list that follows is a tuple (0), a set (1), a frozenset (2): u8
//   ext -1  MessagePack's own timestamp (also in compat)
namespace stagelink::serializer {

inline constexpr uint8_t kFastByte = 0xC1;
inline constexpr uint8_t kFastVersion = 1;
inline constexpr uint8_t kFlagSum = 1;
inline constexpr size_t kPrefixBytes = 24;
inline constexpr size_t kSumAt = 16;
inline constexpr size_t kArrayAlign = 64;

inline constexpr int8_t kExtArray = 1;
inline constexpr int8_t kExtBytes = 2;
inline constexpr int8_t kExtListKind = 3;
inline constexpr int8_t kExtTime = -1;

// Bounds of both forms, on both sides. The rest is bounded by the size of the frame.
inline constexpr size_t kMaxDepth = 512;
inline constexpr size_t kMaxRank = 64;

// From here on a text or a byte string stays where it is until the plan is written.
inline constexpr size_t kInsertBytes = 4096;

enum class Wire : uint8_t { kCompat, kFast };

enum class ArrayKind : uint8_t { kTensor = 0, kNdarray = 1, kImage = 2 };

// compat knows lists only.
enum class ListKind : uint8_t { kTuple = 0, kSet = 1, kFrozenset = 2, kList = 3 };

// An array as it lies in a frame: dense, C order.
struct ArrayView {
  ArrayKind kind = ArrayKind::kTensor;
  std::string_view dtype;  // Of either table of dtype.h. A picture's is that of its mode.
  std::string_view mode;   // Pictures only.
  std::span<const uint64_t> shape;
  std::span<const std::byte> data;  // Exactly as many bytes as shape and dtype say.
};

}  // namespace stagelink::serializer
