#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/random.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

constexpr uint32_t kLayers = 80;
constexpr uint64_t kLayerBytes = uint64_t{12} << 20;
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kBlocksPerLayer = 64;
constexpr double kLayersTarget = 1.1;

// The same ranges twice: as offsets in one pair of regions, and by layer and offset in the layer.
struct LayerRanges {
  std::vector<uint64_t> local, remote, local_in_layer, remote_in_layer, sizes;
  std::vector<uint32_t> layers;

  RangeList flat() const noexcept {
    return {.local_offsets = local,
            .remote_offsets = remote,
            .sizes = sizes,
            .local_regions = {},
            .remote_regions = {}};
  }
  RangeList layered() const noexcept {
    return {.local_offsets = local_in_layer,
            .remote_offsets = remote_in_layer,
            .sizes = sizes,
            .local_regions = layers,
            .remote_regions = layers};
  }
};

// `picks` are slots of one layer; each layer gets them rotated by its own distance.
LayerRanges spread(const Picks& picks) {
  LayerRanges out;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < kBlocksPerLayer; ++i) {
      const uint64_t turn = layer * 13 * kBlockBytes;
      const uint64_t local = (picks.local[i] + turn) % kLayerBytes;
      const uint64_t remote = (picks.remote[i] + 3 * turn) % kLayerBytes;
      out.layers.push_back(layer);
      out.sizes.push_back(kBlockBytes);
      out.local_in_layer.push_back(local);
      out.remote_in_layer.push_back(remote);
      out.local.push_back(layer * kLayerBytes + local);
      out.remote.push_back(layer * kLayerBytes + remote);
    }
  }
  return out;
}

Contender contender(Session& session, bool layered) {
  return [&session, layered](const Picks& picks, Sample& sample) -> Status {
    const LayerRanges spread_ranges = spread(picks);
    const RangeList ranges = layered ? spread_ranges.layered() : spread_ranges.flat();
    const double start_us = now_us();
    SL_ASSIGN(Transfer transfer, session.read(ranges));
    sample.submit_us = now_us() - start_us;
    SL_TRY(transfer.wait());
    sample.wall_us = now_us() - start_us;
    return Status();
  };
}

uint64_t salt_of(uint32_t layer) noexcept { return uint64_t{layer + 1} << 40; }

Result<std::vector<RegionDesc>> allocate_layers(Rig& rig) {
  std::vector<RegionDesc> remote;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    SL_ASSIGN(const TargetRegion region, rig.target().allocate(kLayerBytes));
    SL_TRY(rig.target().fill(region.number, salt_of(layer)));
    remote.push_back(region.descriptor);
  }
  return remote;
}

// A region of each layer, in the one private region.
Result<std::vector<Region>> register_views(Rig& rig) {
  std::byte* const base = rig.local(MemoryKind::kPrivate).bytes().data();
  std::vector<Region> views;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    SL_ASSIGN(Region view, rig.engine().register_memory(base + layer * kLayerBytes, kLayerBytes));
    views.push_back(std::move(view));
  }
  return views;
}

// Reads once more into overwritten memory and compares every byte.
Status verify(Session& layered, std::span<std::byte> bytes, const Picks& picks) {
  const LayerRanges expected = spread(picks);
  for (const uint64_t at : expected.local) std::memset(&bytes[at], 0xee, kBlockBytes);
  Sample sample;
  SL_TRY(contender(layered, true)(picks, sample));
  for (size_t i = 0; i < expected.local.size(); ++i) {
    const auto piece = bytes.subspan(expected.local[i], kBlockBytes);
    if (!holds_content(piece, expected.remote_in_layer[i], salt_of(expected.layers[i]))) {
      return Status(Reason::kCorrupt, fmt::format("layers: block {} is wrong", i));
    }
  }
  return Status();
}

}  // namespace

Status run_layers_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_ASSIGN(const std::vector<RegionDesc> remote, allocate_layers(*rig));
  SL_ASSIGN(const std::vector<Region> views, register_views(*rig));
  std::vector<const Region*> local;
  for (const Region& view : views) local.push_back(&view);
  SL_ASSIGN(Session layered, rig->peer().session(local, remote));
  SL_ASSIGN(Session* const flat, rig->session(MemoryKind::kPrivate));

  // The picks are those of one layer.
  const Shape shape{.block_bytes = kBlockBytes,
                    .blocks = kBlocksPerLayer,
                    .most_slots = kLayerBytes / kBlockBytes};
  SL_ASSIGN(const Measurement measured,
            measure(shape, {contender(layered, true), contender(*flat, false)},
                    context.measure_options()));
  SuiteContext::warn_if_disturbed("layers-80", measured);
  SL_TRY(verify(layered, rig->local(MemoryKind::kPrivate).bytes(), make_picks(shape, 99)));
  context.add({.name = "layers-80",
               .value = measured.median_us(0) / measured.median_us(1),
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = kLayersTarget});
  return Status();
}

}  // namespace stagelink::cli::bench
