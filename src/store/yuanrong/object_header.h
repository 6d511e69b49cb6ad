#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "stagelink/result.h"

// What stands before the bytes of every value that is put into the datasystem. Little-endian; the
// whole is a multiple of 64 bytes, so that the bytes behind it are aligned as the value is.
//
//   offset  size  field
//        0     8  magic
//        8     2  version, 10: 2 zero bytes
//       12     4  bytes of the header
//       16     8  size of the object (all its pieces)
//       24     8  generation
//       32     4  kind: 0 whole, 1 manifest, 2 chunk
//       36     4  manifest: count of chunks; chunk: its index
//       40     8  manifest: bytes of every chunk but the last; chunk: bytes of this one
//       48     4  bytes of the key, 52: 4 zero bytes
//       56     8  check: FNV-1a over everything else of the header, the padding included
//       64     n  the key, then zeros
//
// A manifest has nothing behind its header: the chunks lie under chunk_key(key, generation, index),
// and each must name the same key, generation and size.
namespace stagelink::store::yuanrong {

enum class ObjectKind : uint32_t { kWhole, kManifest, kChunk };

struct ObjectHeader {
  ObjectKind kind = ObjectKind::kWhole;
  uint64_t size = 0;
  uint64_t generation = 0;
  uint32_t chunks = 0;       // Manifest: count. Chunk: index.
  uint64_t chunk_bytes = 0;  // Manifest: of all but the last. Chunk: of this one.
  std::string key;
};

size_t header_bytes(size_t key_bytes) noexcept;
// Writes header_bytes(header.key.size()) bytes to the start of `out`, which has them.
void write_header(const ObjectHeader& header, std::span<std::byte> out) noexcept;
// Errors: corrupt (not a value of ours, damaged, of another key, or its parts do not fit together);
// incompatible (version).
Result<ObjectHeader> read_header(std::span<const std::byte> value, std::string_view key);

}  // namespace stagelink::store::yuanrong
