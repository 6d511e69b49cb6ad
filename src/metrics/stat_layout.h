#pragma once

#include <cstddef>
#include <cstdint>

#include "base/runtime_dir.h"

namespace stagelink::metrics {

// The file <runtime_dir>/<pid>-<8 hex>.stat, little-endian. It describes itself: a reader needs no
// list of names.
//
//   0             StatHeader (its first 32 bytes are an EntryOwner)
//   rows_offset   row_count x StatRow, row_bytes apart
//   values_offset value_count x 8 bytes, each written with one atomic store
//
// A reader takes a file of the same major version; a later minor version may have a longer header
// and longer rows, with the fields below at the same places. The file is whole when it gets its
// name.

inline constexpr uint16_t kStatMajor = 1;
inline constexpr uint16_t kStatMinor = 0;

// Bounds of a file that a reader accepts.
inline constexpr size_t kMaxStatBytes = 1 << 20;
inline constexpr uint32_t kMaxStatRows = 4096;
inline constexpr uint32_t kMaxHistogramBounds = 64;

enum class StatKind : uint32_t {
  kCounter = 1,  // One u64.
  kGauge = 2,    // One i64.
  // For n bounds: n bounds (f64, strictly rising), n + 1 counts (u64, each of its own bucket), and
  // the sum of the observed values (f64).
  kHistogram = 3,
};

struct StatHeader {
  EntryOwner owner;
  uint16_t major = kStatMajor;
  uint16_t minor = kStatMinor;
  uint32_t header_bytes = sizeof(StatHeader);
  uint32_t rows_offset = 0;
  uint32_t row_count = 0;
  uint32_t row_bytes = 0;
  uint32_t values_offset = 0;
  uint32_t value_count = 0;
  uint32_t reserved = 0;
  uint64_t file_bytes = 0;
  uint64_t instance_high = 0;
  uint64_t instance_low = 0;
  uint64_t started_unix_ms = 0;
  char engine_name[128] = {};  // Padded with NUL, at least one.
};
static_assert(sizeof(StatHeader) == 224);

struct StatRow {
  char name[64] = {};     // The full Prometheus name. NUL-padded, as are all texts.
  char labels[112] = {};  // key="value",... or empty
  char help[136] = {};
  uint32_t kind = 0;
  uint32_t first_value = 0;
  uint32_t value_count = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(StatRow) == 328);

}  // namespace stagelink::metrics
