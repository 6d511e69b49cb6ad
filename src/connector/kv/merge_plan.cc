#include "connector/kv/merge_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "connector/kv/json_scanner.h"
#include "memory/copy_kernel.h"

namespace stagelink::kv {
namespace {

Status unlike(const MergePart& part, std::string_view what) {
  return Status(Reason::kIncompatible,
                fmt::format("the KV payload of sender rank {}: {}", part.route.rank, what));
}

Status check_like_first(const MergePart& part, const MergePart& first) {
  const PayloadHeader& ours = *part.header;
  const PayloadHeader& theirs = *first.header;
  if (ours.num_layers != theirs.num_layers || ours.tensors.size() != theirs.tensors.size()) {
    return unlike(part, fmt::format("{} tensors of {} layers, that of rank {} has {} of {}",
                                    ours.tensors.size(), ours.num_layers, first.route.rank,
                                    theirs.tensors.size(), theirs.num_layers));
  }
  for (size_t at = 0; at < ours.tensors.size(); ++at) {
    const PayloadTensor& a = ours.tensors[at];
    const PayloadTensor& b = theirs.tensors[at];
    auto shape = a.shape;
    if (shape.size() == b.shape.size() && shape.size() > 1) shape[1] = b.shape[1];
    if (a.is_value == b.is_value && a.layer == b.layer && a.dtype == b.dtype && shape == b.shape) {
      continue;
    }
    return unlike(part, fmt::format("{} of {} [{}], that of rank {} has {} of {} [{}]", a.name(),
                                    a.dtype->name, fmt::join(a.shape, ", "), first.route.rank,
                                    b.name(), b.dtype->name, fmt::join(b.shape, ", ")));
  }
  return {};
}

// Bytes of one head's row and what follows it in the shape.
uint64_t head_bytes(const PayloadTensor& tensor) noexcept {
  uint64_t bytes = tensor.dtype->bytes;
  for (size_t axis = 2; axis < tensor.shape.size(); ++axis) bytes *= tensor.shape[axis];
  return bytes;
}

}  // namespace

Result<bool> sliced_by_sender(const PayloadHeader& header, uint32_t to_rank) {
  JsonScanner json(header.metadata);
  std::string key;
  std::string_view raw;
  bool applied = false;
  int64_t target = to_rank;
  const auto read_slice = [&] {
    if (json.peek() != '{') return json.skip(raw);
    if (!json.begin_object()) return false;
    while (json.next_key(key)) {
      const bool read = key == "applied" && json.peek() != '0'       ? json.boolean(applied)
                        : key == "target_rank" && json.peek() == '0' ? json.integer(target)
                                                                     : json.skip(raw);
      if (!read) return false;
    }
    return !json.failed();
  };
  bool read = json.begin_object();
  while (read && json.next_key(key)) read = key == "tp_head_slice" ? read_slice() : json.skip(raw);
  if (!read || !json.finished()) {
    return Status(Reason::kFrame, fmt::format("Corrupted KV payload: meta: {}", json.problem()));
  }
  if (applied && target != int64_t{to_rank}) {
    return Status(
        Reason::kIncompatible,
        fmt::format("a KV payload that was sliced for rank {}, this is rank {}", target, to_rank));
  }
  return applied;
}

Result<MergePlan> MergePlan::create(std::span<const MergePart> parts, uint64_t kv_heads) {
  if (parts.empty()) return Status(Reason::kInvalidArgument, "no payloads to merge");
  MergePlan plan;
  plan.placements_.resize(parts.size());
  for (const MergePart& part : parts) {
    SL_TRY(check_like_first(part, parts.front()));
    plan.payload_bytes_.push_back(part.header->payload_bytes);
  }
  for (size_t at = 0; at < parts.front().header->tensors.size(); ++at) {
    SL_TRY(plan.add_tensor(parts, at, kv_heads));
  }
  return plan;
}

Status MergePlan::add_tensor(std::span<const MergePart> parts, size_t index, uint64_t kv_heads) {
  PayloadTensor out = parts.front().header->tensors[index];
  const bool headed = out.shape.size() > 1;
  const uint64_t each = head_bytes(out);
  uint64_t heads = 0;
  std::vector<HeadSpan> taken;
  for (const MergePart& part : parts) {
    const PayloadTensor& tensor = part.header->tensors[index];
    HeadSpan span{0, headed ? tensor.shape[1] : 1};
    if (!part.sliced && !part.route.theirs.whole()) {
      SL_ASSIGN(span, heads_of(part.route.theirs, span.count));
    }
    heads += span.count;
    taken.push_back(span);
  }
  if (headed && out.shape.size() > 2) {
    if (kv_heads != 0 && heads != kv_heads) {
      return unlike(parts.front(), fmt::format("{} comes to {} heads, this rank has {}", out.name(),
                                               heads, kv_heads));
    }
    out.shape[1] = heads;
  } else if (parts.size() > 1) {
    return unlike(parts.front(), fmt::format("{} has no axis of heads to join", out.name()));
  }
  const uint64_t rows = out.shape.empty() ? 1 : out.shape[0];
  out.offset = (bytes_ + kTensorAlign - 1) / kTensorAlign * kTensorAlign;
  uint64_t column = 0;
  for (size_t at = 0; at < parts.size(); ++at) {
    const PayloadTensor& tensor = parts[at].header->tensors[index];
    const uint64_t width = taken[at].count * each;
    if (rows > 0 && width > 0) {
      const uint64_t whole = headed ? tensor.shape[1] * each : each;
      placements_[at].push_back(
          {parts[at].header->data_offset + tensor.offset + taken[at].first * each,
           out.offset + column, rows, width, whole, (headed ? heads : 1) * each});
    }
    column += width;
  }
  out.bytes = rows * column;
  bytes_ = out.offset + out.bytes;
  tensors_.push_back(std::move(out));
  return {};
}

bool MergePlan::dense(size_t part) const noexcept {
  return std::ranges::all_of(placements_[part], &Placement::dense);
}

Status MergePlan::place(size_t part, std::span<const std::byte> payload,
                        std::span<std::byte> memory) const {
  if (payload.size() != payload_bytes_[part] || memory.size() != bytes_) {
    return Status(Reason::kOutOfBounds,
                  fmt::format("a payload of {} bytes and memory of {}, planned were {} and {}",
                              payload.size(), memory.size(), payload_bytes_[part], bytes_));
  }
  const memory::CopyKernel kernel = memory::pick_copy_kernel(0);
  for (const Placement& placement : placements_[part]) {
    std::byte* const to = memory.data() + placement.to;
    const std::byte* const from = payload.data() + placement.from;
    if (placement.dense()) {
      kernel.copy(to, from, placement.rows * placement.row_bytes);
      continue;
    }
    kernel.copy_many(placement.rows, [&](size_t row) {
      return memory::CopyPiece{to + row * placement.to_stride, from + row * placement.from_stride,
                               placement.row_bytes};
    });
  }
  memory::copy_fence();
  return {};
}

}  // namespace stagelink::kv
