#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "connector/block_layout/block_plan.h"
#include "connector/block_layout/cache_geometry.h"
#include "connector/block_layout/run_template.h"

namespace {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // Mostly small, sometimes anything.
  uint64_t number() {
    const uint8_t first = byte();
    if (first < 0xf0) return first;
    uint64_t out = 0;
    for (int i = 0; i < 8; ++i) out = out << 8 | byte();
    return out;
  }
  bool empty() const { return left_ == 0; }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace

// A tensor and a layer as the input describes them, and two lists of ids: whatever is accepted
// stays within what the geometry says, and holds every byte of its blocks.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::block_layout;
  Input input(data, size);
  CacheTensor tensor;
  const size_t axes = 3 + input.byte() % 4;
  for (size_t i = 0; i < axes; ++i) tensor.shape.push_back(input.number());
  for (size_t i = 0; i < axes; ++i) tensor.strides.push_back(input.number());
  tensor.element_bytes = static_cast<uint32_t>(input.number());
  LayerSpec spec;
  const uint8_t flags = input.byte();
  spec.mla = flags & 1;
  spec.opaque = flags & 2;
  spec.layout = static_cast<Layout>(flags >> 2 & 3);
  spec.axes = static_cast<RowAxes>((flags >> 4 & 3) % 3);
  spec.block_size = static_cast<uint32_t>(input.number());
  spec.num_kv_heads = input.byte();
  spec.num_states = input.byte();
  // Not known: any size will do.
  const auto ours = find_geometry(tensor, spec);
  if (!ours.ok()) return 0;
  const auto theirs = with_num_blocks(*ours, input.number());
  if (!theirs.ok() || uint64_t{(*ours).tokens} * (*ours).heads > 4096) return 0;
  const auto layout = make_template(*ours, *theirs);
  if (!layout.ok()) return 0;
  if ((*layout).local_extent() > (*ours).extent()) std::abort();

  std::vector<int64_t> local;
  std::vector<int64_t> remote;
  while (!input.empty() && local.size() < 64) {
    local.push_back(static_cast<int64_t>(input.number()));
    remote.push_back(static_cast<int64_t>(input.number()));
  }
  BlockPlan plan;
  const PlanOptions options{.max_run_bytes = 1 + ((*layout).block_bytes() >> (flags & 3))};
  if (!plan.fill(*layout, {local, remote}, options).ok()) {
    if (plan.size() != 0) std::abort();
    return 0;
  }
  std::sort(local.begin(), local.end());
  const bool once = std::adjacent_find(local.begin(), local.end()) == local.end();
  uint64_t bytes = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (plan.local()[i] + plan.sizes()[i] > (*ours).extent()) std::abort();
    if (plan.remote()[i] + plan.sizes()[i] > (*layout).remote_extent()) std::abort();
    if (plan.sizes()[i] == 0 || plan.sizes()[i] > options.max_run_bytes) std::abort();
    if (i > 0 && once && plan.local()[i] < plan.local()[i - 1]) std::abort();
    bytes += plan.sizes()[i];
  }
  const uint64_t pairs = local.size() - plan.skipped();
  if (bytes != plan.bytes() || bytes != pairs * (*ours).planes * (*ours).plane_bytes())
    std::abort();
  return 0;
}
