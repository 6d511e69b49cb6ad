#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "connector/block_layout/run_template.h"
#include "stagelink/result.h"

namespace stagelink::block_layout {

// The block that schedulers use where there is nothing. It is never moved: a pair that holds it on
// either side is skipped, so lists may be given whole.
inline constexpr int64_t kNullBlock = 0;

// Above the longest run that a NIC takes in one message (2^31) and within 32 bits everywhere.
inline constexpr uint64_t kDefaultMaxRunBytes = uint64_t{1} << 30;

// Block i of `local` belongs to block i of `remote`. A longer remote list is cut to the local one.
struct BlockPairs {
  std::span<const int64_t> local;
  std::span<const int64_t> remote;
};

struct PlanOptions {
  uint64_t local_base = 0;  // Added to every offset: where the layer begins in its region.
  uint64_t remote_base = 0;
  uint64_t max_run_bytes = kDefaultMaxRunBytes;
  bool skip_null_block = true;
};

// Ranges of one transfer of one layer, by local offset. Refilled without allocating once it has
// been as large before.
//
// Thread-safety: a value.
class BlockPlan {
 public:
  std::span<const uint64_t> local() const noexcept { return local_; }
  std::span<const uint64_t> remote() const noexcept { return remote_; }
  std::span<const uint64_t> sizes() const noexcept { return sizes_; }
  size_t size() const noexcept { return sizes_.size(); }
  uint64_t bytes() const noexcept { return bytes_; }
  size_t skipped() const noexcept { return skipped_; }  // Pairs with the null block.

  // Neighbours that are contiguous on both sides become one run; runs are cut at max_run_bytes. On
  // failure the plan is empty. Errors: invalid_argument (also out_of_bounds, overflow) names list,
  // id and range.
  Status fill(const RunTemplate& layout, const BlockPairs& pairs, const PlanOptions& options = {});
  // Appends this plan's ranges, moved by the two bases, to flat arrays of a whole transfer.
  void append_to(std::vector<uint64_t>& local, std::vector<uint64_t>& remote,
                 std::vector<uint64_t>& sizes, uint64_t local_base, uint64_t remote_base) const;

 private:
  struct Pair {
    uint32_t local;
    uint32_t remote;
  };
  Status collect(const RunTemplate& layout, const BlockPairs& pairs, bool skip_null);
  void sort_pairs();
  void emit(const RunTemplate& layout, const PlanOptions& options);
  void put(uint64_t local, uint64_t remote, uint64_t bytes);
  void split(uint64_t max_bytes);
  void clear() noexcept;

  std::vector<uint64_t> local_;
  std::vector<uint64_t> remote_;
  std::vector<uint64_t> sizes_;
  std::vector<Pair> pairs_;
  std::vector<Pair> scratch_;
  uint64_t bytes_ = 0;
  size_t skipped_ = 0;
};

// The plans of one pair of block lists, one for each template: a layer finds the plan that another
// layer of the same layout has made. Plans have base 0; add the layer's bases with append_to().
//
// Thread-safety: none; one transfer has one.
class PlanCache {
 public:
  static constexpr size_t kMaxPlans = 64;

  // Valid until reset(). Errors: those of fill(); limit beyond kMaxPlans.
  Result<const BlockPlan*> plan(const RunTemplate& layout, const BlockPairs& pairs,
                                const PlanOptions& options = {});
  // For other block lists; memory is kept.
  void reset() noexcept { used_ = 0; }
  size_t size() const noexcept { return used_; }

 private:
  struct Entry {
    RunTemplate layout;
    BlockPlan plan;
  };
  std::list<Entry> entries_;  // Stable addresses; the first used_ are in use.
  size_t used_ = 0;
};

}  // namespace stagelink::block_layout
