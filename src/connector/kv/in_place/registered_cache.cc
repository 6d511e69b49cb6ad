#include "connector/kv/in_place/registered_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace stagelink::kv {
namespace {

// Of a payload: its header and the padding of its tensors.
constexpr uint64_t kMostCopied = uint64_t{4} << 20;

struct Extent {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

// From the first byte of a plane to its last one, whatever the signs of its strides.
Extent extent_of(const PagedPlane& plane) {
  int64_t below = 0;
  int64_t above = 0;
  for (size_t axis = 0; axis < plane.shape.size(); ++axis) {
    if (plane.shape[axis] == 0) return {};
    const int64_t reach = (plane.shape[axis] - 1) * plane.strides[axis];
    (reach < 0 ? below : above) += reach;
  }
  const auto first = reinterpret_cast<uintptr_t>(plane.first);
  return {first + static_cast<uintptr_t>(below),
          first + static_cast<uintptr_t>(above) + plane.dtype->bytes};
}

// Keys and values of a layer often lie in each other.
std::vector<Extent> extents_of(std::span<const LayerPlanes> layers) {
  std::vector<Extent> all;
  for (const LayerPlanes& layer : layers) {
    for (const auto* plane : {&layer.keys, &layer.values}) {
      if (plane->has_value()) all.push_back(extent_of(**plane));
    }
  }
  std::erase_if(all, [](const Extent& extent) { return extent.begin == extent.end; });
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::vector<Extent> joined;
  for (const Extent& extent : all) {
    if (!joined.empty() && extent.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, extent.end);
    } else {
      joined.push_back(extent);
    }
  }
  return joined;
}

Status check_connector(const pull::PullOptions& options) {
  const char* why = nullptr;
  if (options.protocol == "shm") why = "`protocol: shm` reads only memory that it can map";
  if (options.protocol == "ascend") why = "`protocol: ascend` reads only its own pool";
  if (options.compat_030) why = "`compat_030`: its peers read only the pool";
  if (why == nullptr) return {};
  return Status(Reason::kUnsupported,
                fmt::format("a KV cache cannot be offered in place: {}", why));
}

}  // namespace

void RegisteredCache::Tickets::set_free(uint64_t ticket) {
  MutexLock lock(mutex);
  if (held.erase(ticket) == 0) return;
  free.push_back(ticket);
  freed.notify_all();
}

Result<std::unique_ptr<RegisteredCache>> RegisteredCache::create(
    pull::PullConnector& connector, std::span<const LayerPlanes> layers) {
  SL_TRY(check_connector(connector.options()));
  const std::vector<Extent> extents = extents_of(layers);
  constexpr size_t kMostRegions = 255;  // Of one payload.
  if (extents.empty() || extents.size() > kMostRegions) {
    return Status(Reason::kTooManyRegions,
                  fmt::format("a KV cache in {} pieces of memory; 1 to {} can be registered",
                              extents.size(), kMostRegions));
  }
  std::unique_ptr<RegisteredCache> cache(new RegisteredCache(connector));
  for (const Extent& extent : extents) {
    SL_ASSIGN(auto region, connector.register_memory(reinterpret_cast<void*>(extent.begin),
                                                     extent.end - extent.begin));
    cache->regions_.push_back(std::move(region));
  }
  return cache;
}

std::shared_ptr<const Region> RegisteredCache::find(std::span<const std::byte> bytes) const {
  const auto after = std::upper_bound(
      regions_.begin(), regions_.end(), bytes.data(),
      [](const std::byte* at, const auto& region) { return at < region->bytes().data(); });
  if (after == regions_.begin()) return nullptr;
  const std::span<std::byte> memory = (*std::prev(after))->bytes();
  const auto offset = static_cast<size_t>(bytes.data() - memory.data());
  const bool inside = offset < memory.size() && bytes.size() <= memory.size() - offset;
  return inside ? *std::prev(after) : nullptr;
}

// What lies in no region is copied to one piece of the pool, in order.
Result<RegisteredCache::Placed> RegisteredCache::place(const PayloadPlan& plan,
                                                       const pull::PutTerms& terms) const {
  SL_ASSIGN(const auto runs, plan.runs(pull::kMaxOfferPieces));
  Placed placed;
  std::vector<size_t> copied;
  uint64_t copied_bytes = 0;
  for (const std::span<const std::byte> run : runs) {
    std::shared_ptr<const Region> region = find(run);
    if (region == nullptr) {
      copied.push_back(placed.ranges.size());
      copied_bytes += run.size();
      placed.ranges.push_back({nullptr, 0, run.size()});
    } else {
      const auto offset = static_cast<uint64_t>(run.data() - region->bytes().data());
      placed.ranges.push_back({std::move(region), offset, run.size()});
    }
  }
  if (copied_bytes > kMostCopied ||
      copied_bytes > plan.data_offset() + runs.size() * kTensorAlign) {
    return Status(Reason::kOutOfBounds, "the payload is of a cache that is not registered");
  }
  const Duration timeout =
      terms.timeout > Duration::zero() ? terms.timeout : connector_.options().put_timeout;
  SL_ASSIGN(placed.copied, connector_.allocate(copied_bytes, timeout, terms.interrupted));
  const pull::RegisteredRange whole = connector_.range_of(placed.copied);
  uint64_t at = 0;
  for (const size_t index : copied) {
    pull::RegisteredRange& range = placed.ranges[index];
    std::memcpy(placed.copied.bytes().data() + at, runs[index].data(), range.bytes);
    range.region = whole.region;
    range.offset = whole.offset + at;
    at += range.bytes;
  }
  return placed;
}

Result<pull::PullMetadata> RegisteredCache::put(std::string_view key, const PayloadPlan& plan,
                                                uint64_t ticket, const pull::PutTerms& terms) {
  SL_ASSIGN(Placed placed, place(plan, terms));
  {
    MutexLock lock(tickets_->mutex);
    tickets_->held.emplace(ticket, Offered{std::string(key), 0});
  }
  auto put = connector_.put_ranges(
      key, placed.ranges,
      [tickets = tickets_, piece = std::move(placed.copied), ticket] { tickets->set_free(ticket); },
      terms);
  MutexLock lock(tickets_->mutex);
  const auto held = tickets_->held.find(ticket);
  if (held == tickets_->held.end()) return put;  // Read and free by now.
  if (put.ok()) {
    held->second.generation = put->generation;
  } else {
    tickets_->held.erase(held);
  }
  return put;
}

std::vector<uint64_t> RegisteredCache::take_free() {
  MutexLock lock(tickets_->mutex);
  return std::exchange(tickets_->free, {});
}

uint64_t RegisteredCache::held() const {
  MutexLock lock(tickets_->mutex);
  return tickets_->held.size();
}

Status RegisteredCache::close(Duration timeout) {
  const Deadline deadline = Deadline::in(timeout);
  std::vector<Offered> offered;
  {
    MutexLock lock(tickets_->mutex);
    for (const auto& [ticket, one] : tickets_->held) offered.push_back(one);
  }
  for (const Offered& one : offered) connector_.cleanup(one.key, one.generation);
  MutexLock lock(tickets_->mutex);
  while (!tickets_->held.empty()) {
    if (!tickets_->freed.wait_until(tickets_->mutex, deadline)) {
      return Status(Reason::kReaderInside,
                    fmt::format("{} payloads of the KV cache are still being read in place",
                                tickets_->held.size()));
    }
  }
  regions_.clear();
  return {};
}

}  // namespace stagelink::kv
