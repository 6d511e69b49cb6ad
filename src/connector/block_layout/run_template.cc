#include "connector/block_layout/run_template.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "connector/block_layout/checked.h"

namespace stagelink::block_layout {
namespace {

constexpr uint64_t kMaxRows = uint64_t{1} << 22;  // Of one block; bounds the work.

template <typename T>
Status differs(std::string_view field, const T& ours, const T& theirs) {
  return Status(Reason::kIncompatible,
                fmt::format("layout mismatch: {}: ours {}, theirs {}", field, ours, theirs));
}

uint64_t row_offset(const BlockGeometry& g, uint64_t plane, uint64_t token,
                    uint64_t head) noexcept {
  return plane * g.plane_stride + token / g.kernel_tokens * g.kernel_stride +
         token % g.kernel_tokens * g.token_stride + head * g.head_stride;
}

// Sorts by local offset and joins what is contiguous on both sides.
void merge_runs(std::vector<BlockRun>& runs) {
  std::sort(runs.begin(), runs.end(),
            [](const BlockRun& a, const BlockRun& b) { return a.local < b.local; });
  size_t last = 0;
  for (size_t i = 1; i < runs.size(); ++i) {
    BlockRun& before = runs[last];
    if (before.local + before.bytes == runs[i].local &&
        before.remote + before.bytes == runs[i].remote) {
      before.bytes += runs[i].bytes;
    } else {
      runs[++last] = runs[i];
    }
  }
  runs.resize(std::min(runs.size(), last + 1));
}

Status check_slice(const BlockGeometry& local, const BlockGeometry& remote,
                   const HeadSlice& slice) {
  const bool fits = slice.count > 0 && uint64_t{slice.local_first} + slice.count <= local.heads &&
                    uint64_t{slice.remote_first} + slice.count <= remote.heads;
  if (fits) return {};
  return Status(Reason::kOutOfBounds,
                fmt::format("{} heads from {} of ours ({}) and from {} of theirs ({})", slice.count,
                            slice.local_first, local.heads, slice.remote_first, remote.heads));
}

// Blocks whose inside only their owner's kernels know.
Status check_whole(const BlockGeometry& local, const BlockGeometry& remote, bool sliced) {
  if (sliced) {
    return Status(
        Reason::kIncompatible,
        "layout mismatch: heads of a block whose inner order is not known cannot be moved "
        "apart");
  }
  if (local.text() != remote.text()) return differs("layout", local.text(), remote.text());
  const bool same_plane =
      (local.halves && remote.halves) ||
      (local.halves == remote.halves && local.plane_stride == remote.plane_stride);
  if (!same_plane || local.kernel_stride != remote.kernel_stride ||
      local.token_stride != remote.token_stride || local.head_stride != remote.head_stride) {
    return Status(Reason::kIncompatible,
                  "layout mismatch: the strides within a block differ, and its inner order is not "
                  "known");
  }
  return {};
}

Status check_pair(const BlockGeometry& local, const BlockGeometry& remote,
                  const std::optional<HeadSlice>& slice) {
  if (local.tokens != remote.tokens) return differs("block_size", local.tokens, remote.tokens);
  if (local.row_bytes != remote.row_bytes) {
    return differs("row_bytes", local.row_bytes, remote.row_bytes);
  }
  if (local.planes != remote.planes) {
    return differs("layout", layout_name(local.layout), layout_name(remote.layout));
  }
  if (!slice.has_value() && local.heads != remote.heads) {
    return differs("kv_heads", local.heads, remote.heads);
  }
  if (slice.has_value()) SL_TRY(check_slice(local, remote, *slice));
  const bool whole = local.opaque || remote.opaque || !local.heads_known || !remote.heads_known;
  const bool sliced =
      slice.has_value() && (slice->count != local.heads || slice->count != remote.heads);
  return whole ? check_whole(local, remote, sliced) : Status();
}

// Fills the strides in and checks that every address fits.
Result<RunTemplate> finish(RunTemplate out) {
  if (out.runs.size() > kMaxRunsPerBlock) {
    return Status(Reason::kTooManyRanges, fmt::format("{} runs for each block, the limit is {}",
                                                      out.runs.size(), kMaxRunsPerBlock));
  }
  Checked checked;
  for (const BlockRun& run : out.runs) {
    checked.add(checked.mul(out.local_stride, out.local_blocks), run.local + run.bytes);
    checked.add(checked.mul(out.remote_stride, out.remote_blocks), run.remote + run.bytes);
  }
  if (checked.ok() && out.local_blocks > 0 && out.remote_blocks > 0 &&
      out.local_blocks <= uint64_t{1} << 31 && out.remote_blocks <= uint64_t{1} << 31) {
    return out;
  }
  return Status(Reason::kOverflow,
                fmt::format("{} blocks of {} bytes and {} of {}", out.local_blocks,
                            out.local_stride, out.remote_blocks, out.remote_stride));
}

template <typename Offset>
uint64_t extent(const RunTemplate& layout, uint64_t blocks, uint64_t stride, Offset offset) {
  uint64_t end = 0;
  for (const BlockRun& run : layout.runs) end = std::max(end, run.*offset + run.bytes);
  return blocks == 0 ? 0 : (blocks - 1) * stride + end;
}

}  // namespace

uint64_t RunTemplate::block_bytes() const noexcept {
  uint64_t sum = 0;
  for (const BlockRun& run : runs) sum += run.bytes;
  return sum;
}

uint64_t RunTemplate::local_extent() const noexcept {
  return extent(*this, local_blocks, local_stride, &BlockRun::local);
}

uint64_t RunTemplate::remote_extent() const noexcept {
  return extent(*this, remote_blocks, remote_stride, &BlockRun::remote);
}

Result<RunTemplate> make_template(const BlockGeometry& local, const BlockGeometry& remote,
                                  const std::optional<HeadSlice>& slice) {
  for (const BlockGeometry* g : {&local, &remote}) {
    if (g->kernel_tokens == 0 || g->tokens == 0 || g->heads == 0 || g->row_bytes == 0) {
      return Status(Reason::kInvalidArgument, "a geometry without rows");
    }
  }
  SL_TRY(check_pair(local, remote, slice));
  const HeadSlice heads = slice.value_or(HeadSlice{0, 0, local.heads});
  if (uint64_t{local.planes} * local.tokens > kMaxRows / heads.count) {
    return Status(Reason::kTooManyRanges,
                  fmt::format("{} tokens of {} heads in one block", local.tokens, heads.count));
  }
  RunTemplate out{.local_blocks = local.num_blocks,
                  .remote_blocks = remote.num_blocks,
                  .local_stride = local.block_stride,
                  .remote_stride = remote.block_stride};
  out.runs.reserve(size_t{local.planes} * local.tokens * heads.count);
  for (uint64_t plane = 0; plane < local.planes; ++plane) {
    for (uint64_t token = 0; token < local.tokens; ++token) {
      for (uint64_t head = 0; head < heads.count; ++head) {
        out.runs.push_back({row_offset(local, plane, token, heads.local_first + head),
                            row_offset(remote, plane, token, heads.remote_first + head),
                            local.row_bytes});
      }
    }
  }
  merge_runs(out.runs);
  out.runs.shrink_to_fit();
  return finish(std::move(out));
}

Result<RunTemplate> make_template(const StateGeometry& local, const StateGeometry& remote) {
  if (local.parts.size() != remote.parts.size() || local.parts.empty()) {
    return differs("state parts", local.parts.size(), remote.parts.size());
  }
  RunTemplate out{.local_blocks = local.num_slots,
                  .remote_blocks = remote.num_slots,
                  .local_stride = local.slot_stride,
                  .remote_stride = remote.slot_stride};
  Checked checked;
  for (size_t i = 0; i < local.parts.size(); ++i) {
    const auto& ours = local.parts[i];
    const auto& theirs = remote.parts[i];
    if (ours.bytes != theirs.bytes || ours.bytes == 0) {
      return differs("state bytes", ours.bytes, theirs.bytes);
    }
    checked.add(ours.offset, ours.bytes);
    checked.add(theirs.offset, theirs.bytes);
    out.runs.push_back({ours.offset, theirs.offset, ours.bytes});
  }
  if (!checked.ok()) return Status(Reason::kOverflow, "a state beyond 2^62 bytes");
  merge_runs(out.runs);
  for (size_t i = 1; i < out.runs.size(); ++i) {
    if (out.runs[i].local >= out.runs[i - 1].local + out.runs[i - 1].bytes) continue;
    return Status(Reason::kInvalidArgument, "the parts of a state overlap");
  }
  const auto& last = out.runs.back();
  if (last.local + last.bytes > local.slot_stride && local.num_slots > 1) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("a state of {} bytes in slots of {}", last.local + last.bytes,
                              local.slot_stride));
  }
  return finish(std::move(out));
}

Result<std::vector<StateGeometry>> states_of_page(uint64_t num_slots, uint64_t page_stride,
                                                  uint64_t page_bytes,
                                                  std::span<const uint64_t> state_bytes) {
  std::vector<StateGeometry> out;
  Checked checked;
  uint64_t offset = 0;
  for (const uint64_t bytes : state_bytes) {
    const uint64_t end = checked.add(offset, bytes);
    if (!checked.ok() || bytes == 0 || end > page_bytes) {
      return Status(
          Reason::kInvalidArgument,
          fmt::format("a state of {} bytes at {} of a page of {}", bytes, offset, page_bytes));
    }
    out.push_back({num_slots, page_stride, {{offset, bytes}}});
    offset = end;
  }
  if (num_slots == 0 || (num_slots > 1 && page_stride < page_bytes)) {
    return Status(Reason::kInvalidArgument, fmt::format("{} pages of {} bytes, {} bytes apart",
                                                        num_slots, page_bytes, page_stride));
  }
  return out;
}

}  // namespace stagelink::block_layout
