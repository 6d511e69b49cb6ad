#include "connector/block_layout/block_plan.h"

#include <algorithm>
#include <array>
#include <bit>

#include <fmt/format.h>

namespace stagelink::block_layout {
namespace {

// The first id that is out of range, by one pass that the compiler can vectorise.
Status check_ids(const char* what, std::span<const int64_t> ids, uint64_t blocks) {
  uint64_t largest = 0;
  for (const int64_t id : ids) largest = std::max(largest, static_cast<uint64_t>(id));
  if (ids.empty() || largest < blocks) return {};
  const auto wrong = std::find_if(
      ids.begin(), ids.end(), [blocks](int64_t id) { return static_cast<uint64_t>(id) >= blocks; });
  return Status(Reason::kOutOfBounds,
                fmt::format("{} block id {} is outside [0, {})", what, *wrong, blocks));
}

}  // namespace

void BlockPlan::clear() noexcept {
  local_.clear();
  remote_.clear();
  sizes_.clear();
  bytes_ = 0;
  skipped_ = 0;
}

Status BlockPlan::collect(const RunTemplate& layout, const BlockPairs& pairs, bool skip_null) {
  if (pairs.local.size() > pairs.remote.size()) {
    return Status(Reason::kInvalidArgument, fmt::format("{} local blocks for {} remote ones",
                                                        pairs.local.size(), pairs.remote.size()));
  }
  SL_TRY(check_ids("local", pairs.local, layout.local_blocks));
  // All of them, as a list with a wrong id is another cache's list.
  SL_TRY(check_ids("remote", pairs.remote, layout.remote_blocks));
  pairs_.resize(pairs.local.size());
  size_t count = 0;
  for (size_t i = 0; i < pairs.local.size(); ++i) {
    const int64_t local = pairs.local[i];
    const int64_t remote = pairs.remote[i];
    pairs_[count] = {static_cast<uint32_t>(local), static_cast<uint32_t>(remote)};
    count += skip_null && (local == kNullBlock || remote == kNullBlock) ? 0 : 1;
  }
  skipped_ = pairs_.size() - count;
  pairs_.resize(count);
  return {};
}

// Stable, by the local id: lists from a block pool are often in order already; else as many
// counting passes over 11 bits as the largest id needs.
void BlockPlan::sort_pairs() {
  uint32_t largest = 0;
  bool sorted = true;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    largest = std::max(largest, pairs_[i].local);
    sorted = sorted && (i == 0 || pairs_[i - 1].local <= pairs_[i].local);
  }
  if (sorted) return;
  constexpr uint32_t kBits = 11;
  constexpr uint32_t kMask = (1U << kBits) - 1;
  scratch_.resize(pairs_.size());
  for (uint32_t shift = 0; shift < 32 && (largest >> shift) != 0; shift += kBits) {
    std::array<uint32_t, kMask + 2> starts{};
    for (const Pair& pair : pairs_) ++starts[((pair.local >> shift) & kMask) + 1];
    for (size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
    for (const Pair& pair : pairs_) scratch_[starts[(pair.local >> shift) & kMask]++] = pair;
    pairs_.swap(scratch_);
  }
}

void BlockPlan::put(uint64_t local, uint64_t remote, uint64_t bytes) {
  if (!sizes_.empty() && local_.back() + sizes_.back() == local &&
      remote_.back() + sizes_.back() == remote) {
    sizes_.back() += bytes;
    return;
  }
  local_.push_back(local);
  remote_.push_back(remote);
  sizes_.push_back(bytes);
}

// Runs of a block that lie within one stride keep the order of the blocks; what lies beyond (V
// behind all of K) begins a section of its own, behind all blocks of the section before.
void BlockPlan::emit(const RunTemplate& layout, const PlanOptions& options) {
  const auto& runs = layout.runs;
  for (size_t begin = 0; begin < runs.size();) {
    size_t end = begin + 1;
    while (end < runs.size() &&
           runs[end].local + runs[end].bytes - runs[begin].local <= layout.local_stride) {
      ++end;
    }
    for (size_t first = 0; first < pairs_.size();) {
      size_t last = first + 1;  // Behind the pairs of the same local block.
      while (last < pairs_.size() && pairs_[last].local == pairs_[first].local) ++last;
      const uint64_t local = options.local_base + pairs_[first].local * layout.local_stride;
      for (size_t i = begin; i < end; ++i) {
        for (size_t pair = first; pair < last; ++pair) {
          const uint64_t remote = options.remote_base + pairs_[pair].remote * layout.remote_stride;
          put(local + runs[i].local, remote + runs[i].remote, runs[i].bytes);
        }
      }
      first = last;
    }
    begin = end;
  }
  bytes_ = layout.block_bytes() * pairs_.size();
}

// In place from behind, so that no second set of arrays is needed.
void BlockPlan::split(uint64_t max_bytes) {
  size_t count = 0;
  for (const uint64_t size : sizes_) count += (size - 1) / max_bytes + 1;
  size_t from = sizes_.size();
  if (count == from) return;
  local_.resize(count);
  remote_.resize(count);
  sizes_.resize(count);
  for (size_t to = count; from > 0;) {
    --from;
    const uint64_t local = local_[from];
    const uint64_t remote = remote_[from];
    const uint64_t size = sizes_[from];
    for (uint64_t piece = (size - 1) / max_bytes + 1; piece > 0; --piece) {
      const uint64_t offset = (piece - 1) * max_bytes;
      --to;
      local_[to] = local + offset;
      remote_[to] = remote + offset;
      sizes_[to] = std::min(max_bytes, size - offset);
    }
  }
}

Status BlockPlan::fill(const RunTemplate& layout, const BlockPairs& pairs,
                       const PlanOptions& options) {
  clear();
  constexpr uint64_t kMaxBase = uint64_t{1} << 62;
  if (options.max_run_bytes == 0 || options.local_base > kMaxBase ||
      options.remote_base > kMaxBase) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("max_run_bytes {}, bases {} and {}", options.max_run_bytes,
                              options.local_base, options.remote_base));
  }
  SL_TRY(collect(layout, pairs, options.skip_null_block));
  if (pairs_.empty()) return {};
  sort_pairs();
  emit(layout, options);
  split(options.max_run_bytes);
  return {};
}

void BlockPlan::append_to(std::vector<uint64_t>& local, std::vector<uint64_t>& remote,
                          std::vector<uint64_t>& sizes, uint64_t local_base,
                          uint64_t remote_base) const {
  const size_t before = sizes.size();
  local.resize(before + size());
  remote.resize(before + size());
  for (size_t i = 0; i < size(); ++i) {
    local[before + i] = local_[i] + local_base;
    remote[before + i] = remote_[i] + remote_base;
  }
  sizes.insert(sizes.end(), sizes_.begin(), sizes_.end());
}

Result<const BlockPlan*> PlanCache::plan(const RunTemplate& layout, const BlockPairs& pairs,
                                         const PlanOptions& options) {
  auto entry = entries_.begin();
  for (size_t i = 0; i < used_; ++i, ++entry) {
    if (entry->layout == layout) return &entry->plan;
  }
  if (used_ == kMaxPlans) {
    return Status(Reason::kLimit, fmt::format("layers of more than {} layouts", kMaxPlans));
  }
  if (entry == entries_.end()) entry = entries_.emplace(entry);
  entry->layout = layout;
  SL_TRY(entry->plan.fill(layout, pairs, options));
  ++used_;
  return &entry->plan;
}

}  // namespace stagelink::block_layout
