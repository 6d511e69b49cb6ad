#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stagelink/result.h"
#include "wire/field_reader.h"
#include "wire/hello.h"

// The first 16 bytes of the descriptors that users carry between processes by their own means:
// magic (4), version major (2), minor (2), check (8). The check is FNV-1a over everything behind
// it. It finds damage and mix-ups, not forgery.
namespace stagelink::wire {

inline constexpr size_t kBlobHeadBytes = 16;

std::vector<std::byte> seal_blob(uint32_t magic, Version version, std::span<const std::byte> body);
// Reads the head from `reader`, which stands at the start of `in`. Errors: corrupt (frame),
// incompatible (version). Wrong fields are left to the reader to report.
Result<Version> open_blob(FieldReader& reader, std::span<const std::byte> in, uint32_t magic,
                          const char* what);

}  // namespace stagelink::wire
