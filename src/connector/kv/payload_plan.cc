#include "connector/kv/payload_plan.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "connector/serializer/piece_writer.h"
#include "memory/copy_kernel.h"

namespace stagelink::kv {
namespace {

using serializer::ArraySource;

constexpr std::array<std::byte, kTensorAlign> kPadding{};

// Blocks that follow one another in the list and in the cache.
struct BlockRun {
  int64_t first = 0;
  int64_t count = 0;
};

std::vector<BlockRun> runs_of(std::span<const int64_t> ids) {
  std::vector<BlockRun> out;
  for (const int64_t id : ids) {
    if (!out.empty() && out.back().first + out.back().count == id) {
      ++out.back().count;
    } else {
      out.push_back({id, 1});
    }
  }
  return out;
}

Status bad_request(std::string message, Reason reason = Reason::kOutOfBounds) {
  return Status(reason, std::move(message));
}

// The blocks that hold seq_len tokens. Blocks beyond them are left out, as the scheduler may have
// given more.
Result<std::span<const int64_t>> blocks_of(const PayloadRequest& request, const PagedPlane& plane,
                                           const std::string& name) {
  const auto tokens = static_cast<uint64_t>(plane.shape[1]);
  const uint64_t wanted = (request.seq_len + tokens - 1) / tokens;
  if (wanted > request.block_ids.size()) {
    return bad_request(
        fmt::format("request {}: seq_len {} needs {} blocks of {} tokens, there are {}",
                    request.request_id, request.seq_len, wanted, tokens, request.block_ids.size()));
  }
  const auto ids = request.positions.empty() ? request.block_ids : request.positions;
  const auto used = ids.first(wanted);
  for (const int64_t id : used) {
    if (id >= 0 && id < plane.shape[0]) continue;
    return bad_request(fmt::format("request {}: block {} is not one of the {} of {}",
                                   request.request_id, id, plane.shape[0], name));
  }
  return used;
}

}  // namespace

Result<PayloadPlan> PayloadPlan::create(std::span<const LayerPlanes> layers,
                                        const PayloadRequest& request) {
  if (layers.empty() || layers.size() > kMaxLayers) {
    return bad_request(fmt::format("{} layers, not within 1 to {}", layers.size(), kMaxLayers));
  }
  if (request.seq_len == 0) {
    return bad_request(fmt::format("request {}: seq_len is 0", request.request_id));
  }
  if (request.block_ids.size() > kMaxBlockIds) {
    return bad_request(fmt::format("request {}: {} blocks, the limit is {}", request.request_id,
                                   request.block_ids.size(), kMaxBlockIds),
                       Reason::kTooLarge);
  }
  if (!request.positions.empty() && request.positions.size() != request.block_ids.size()) {
    return bad_request(fmt::format("request {}: {} positions of {} blocks", request.request_id,
                                   request.positions.size(), request.block_ids.size()));
  }
  if (request.align != 1 && request.align != kTensorAlign) {
    return bad_request(fmt::format("align is {}, expected 1 or {}", request.align, kTensorAlign));
  }
  PayloadPlan plan;
  plan.header_.request_id = request.request_id;
  plan.header_.block_ids.assign(request.block_ids.begin(), request.block_ids.end());
  plan.header_.metadata = request.metadata;
  plan.header_.num_layers = static_cast<uint32_t>(layers.size());
  SL_TRY(plan.add_planes(layers, request, false));
  SL_TRY(plan.add_planes(layers, request, true));
  if (plan.header_.tensors.empty()) {
    return bad_request(fmt::format("request {}: no layer has a cache", request.request_id));
  }
  SL_ASSIGN(plan.prefix_, encode_header(plan.header_, request.align));
  plan.data_offset_ = plan.prefix_.size();
  plan.size_ += plan.data_offset_;
  return plan;
}

Status PayloadPlan::add_planes(std::span<const LayerPlanes> layers, const PayloadRequest& request,
                               bool values) {
  for (size_t at = 0; at < layers.size(); ++at) {
    const auto& plane = values ? layers[at].values : layers[at].keys;
    if (!plane) continue;
    PayloadTensor tensor;
    tensor.is_value = values;
    tensor.layer = static_cast<uint32_t>(at);
    SL_TRY(add_plane(*plane, request, std::move(tensor)));
  }
  return {};
}

Status PayloadPlan::add_plane(const PagedPlane& plane, const PayloadRequest& request,
                              PayloadTensor tensor) {
  SL_ASSIGN(const auto blocks, blocks_of(request, plane, tensor.name()));
  // [blocks, tokens, heads, ...] with some of the heads.
  StridedTensor part = plane;
  if (!request.heads.whole()) {
    if (part.shape.size() < 3) {
      return bad_request(fmt::format("{} has no axis of heads to slice", tensor.name()),
                         Reason::kInvalidArgument);
    }
    SL_ASSIGN(const HeadSpan heads, heads_of(request.heads, static_cast<uint64_t>(part.shape[2])));
    part.first += static_cast<int64_t>(heads.first) * part.strides[2];
    part.shape[2] = static_cast<int64_t>(heads.count);
  }
  const int64_t tokens = part.shape[1];
  auto left = static_cast<int64_t>(request.seq_len);
  tensor.dtype = part.dtype;
  tensor.shape.push_back(request.seq_len);
  for (size_t axis = 2; axis < part.shape.size(); ++axis) {
    tensor.shape.push_back(static_cast<uint64_t>(part.shape[axis]));
  }
  tensor.offset = (size_ + request.align - 1) / request.align * request.align;
  pad_to(tensor.offset, size_);
  const auto add = [&](int64_t block, int64_t count, int64_t rows) -> Status {
    part.shape[0] = count;
    part.shape[1] = rows;
    SL_ASSIGN(ArraySource source, ArraySource::create(part.first + block * part.strides[0],
                                                      part.shape, part.strides, part.dtype->bytes));
    if (__builtin_add_overflow(tensor.bytes, source.bytes(), &tensor.bytes)) {
      return bad_request("its bytes have no number", Reason::kTooLarge);
    }
    sources_.push_back(std::move(source));
    return {};
  };
  for (const BlockRun& run : runs_of(blocks)) {
    const int64_t full = std::min(run.count, left / tokens);
    if (full > 0) SL_TRY(add(run.first, full, tokens));
    left -= full * tokens;
    if (full == run.count) continue;
    SL_TRY(add(run.first + full, 1, left));
    left = 0;
  }
  size_ = tensor.offset + tensor.bytes;
  header_.tensors.push_back(std::move(tensor));
  return {};
}

void PayloadPlan::pad_to(uint64_t offset, uint64_t end) {
  if (offset > end) sources_.push_back(ArraySource::dense({kPadding.data(), offset - end}));
}

Status PayloadPlan::write(std::span<std::byte> out) const { return write({&out, 1}); }

Status PayloadPlan::write(std::span<const std::span<std::byte>> pieces) const {
  uint64_t room = 0;
  for (const auto& piece : pieces) room += piece.size();
  if (room != size_) {
    return bad_request(fmt::format("a payload of {} bytes does not fit {} bytes", size_, room));
  }
  const memory::CopyKernel kernel = memory::pick_copy_kernel(0);
  serializer::PieceWriter writer(pieces, kernel);
  writer.append(std::as_bytes(std::span(prefix_)));
  for (const ArraySource& source : sources_) source.copy_to(writer);
  memory::copy_fence();
  return {};
}

Result<std::vector<std::span<const std::byte>>> PayloadPlan::runs(size_t limit) const {
  std::vector<std::span<const std::byte>> out = {std::as_bytes(std::span(prefix_))};
  for (const ArraySource& source : sources_) {
    if (out.size() >= limit || !source.append_runs(out, limit)) {
      return Status(Reason::kTooManyRanges,
                    fmt::format("the payload lies in more than {} runs", limit));
    }
  }
  return out;
}

}  // namespace stagelink::kv
