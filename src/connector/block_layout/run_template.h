#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "connector/block_layout/cache_geometry.h"
#include "connector/block_layout/head_map.h"
#include "stagelink/result.h"

namespace stagelink::block_layout {

// A run of bytes of a block, relative to where the block begins on either side.
struct BlockRun {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t bytes = 0;
  friend bool operator==(const BlockRun&, const BlockRun&) = default;
};

inline constexpr size_t kMaxRunsPerBlock = 1 << 16;

// How any block of ours corresponds to any block of theirs. Made once for each pair of layouts;
// layers that look alike share it.
//
// Thread-safety: a value.
struct RunTemplate {
  uint64_t local_blocks = 0;
  uint64_t remote_blocks = 0;
  uint64_t local_stride = 0;
  uint64_t remote_stride = 0;
  std::vector<BlockRun> runs;  // By local offset; none overlap; neighbours are not contiguous.
  friend bool operator==(const RunTemplate&, const RunTemplate&) = default;

  uint64_t block_bytes() const noexcept;
  // Behind the last byte that a plan can touch on either side.
  uint64_t local_extent() const noexcept;
  uint64_t remote_extent() const noexcept;
};

// Whole blocks, or with `slice` some of their heads. The two sides may differ in the number of
// blocks and, unless opaque, in the order of tokens and heads and in kernel blocks. Errors:
// incompatible ("layout mismatch: field: ours X, theirs Y"), invalid_argument (overflow), limit
// (too_many_ranges) beyond kMaxRunsPerBlock.
Result<RunTemplate> make_template(const BlockGeometry& local, const BlockGeometry& remote,
                                  const std::optional<HeadSlice>& slice = std::nullopt);

// State that is kept for each sequence rather than for each token (mamba, KDA): a page of `parts`.
struct StateGeometry {
  uint64_t num_slots = 0;
  uint64_t slot_stride = 0;  // Bytes.
  struct Part {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };
  std::vector<Part> parts;  // Sub-projections of conv, or the one state of ssm.
  friend bool operator==(const StateGeometry&, const StateGeometry&) = default;
};
// Equal parts on both sides; slots may differ in number and stride. Errors as above.
Result<RunTemplate> make_template(const StateGeometry& local, const StateGeometry& remote);

// The states of a packed page [slots, 1, 1, page_bytes], one behind the other, each with its own
// geometry relative to the page. Errors: invalid_argument if they do not fit into the page.
Result<std::vector<StateGeometry>> states_of_page(uint64_t num_slots, uint64_t page_stride,
                                                  uint64_t page_bytes,
                                                  std::span<const uint64_t> state_bytes);

}  // namespace stagelink::block_layout
