#include "store/shm/layout.h"

#include <bit>

#include <fmt/format.h>

namespace stagelink::store::shm {
namespace {

constexpr uint64_t kPage = 4096;

constexpr uint64_t round_to(uint64_t value, uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

Status not_an_arena(std::string what) { return Status(Reason::kCorrupt, std::move(what)); }

}  // namespace

Geometry Geometry::of(uint64_t capacity, uint32_t max_objects) noexcept {
  Geometry g;
  g.capacity = round_to(capacity, kPage);
  g.max_objects = max_objects;
  g.index_size = std::bit_ceil(uint64_t{max_objects} * 2);
  g.slots_at = round_to(sizeof(Header), kPage);
  g.index_at = round_to(g.slots_at + sizeof(Slot) * (uint64_t{max_objects} + 1), kPage);
  g.heap_at = round_to(g.index_at + sizeof(uint64_t) * g.index_size, kPage);
  g.total_bytes = g.heap_at + g.capacity;
  return g;
}

Result<Geometry> check_header(const Header& header, uint64_t file_bytes) {
  if (header.magic.get() != kMagic) {
    return not_an_arena(
        fmt::format("it begins with {:#018x}, an arena with {:#018x}", header.magic.get(), kMagic));
  }
  const uint32_t major = header.major.get();
  const uint32_t minor = header.minor.get();
  if (major != kLayoutMajor || minor > kLayoutMinor + 1) {
    return Status(Reason::kVersion, fmt::format("it has layout {}.{}, this build has {}.{}", major,
                                                minor, kLayoutMajor, kLayoutMinor));
  }
  if (header.lock_bytes.get() != sizeof(pthread_mutex_t)) {
    return Status(Reason::kVersion, fmt::format("its lock has {} bytes, that of this build {}",
                                                header.lock_bytes.get(), sizeof(pthread_mutex_t)));
  }
  const uint64_t capacity = header.capacity.get();
  const uint32_t max_objects = header.max_objects.get();
  if (capacity < kPage || capacity > kMaxCapacity || capacity % kPage != 0 || max_objects == 0 ||
      max_objects > kMaxObjects) {
    return not_an_arena(
        fmt::format("it claims a capacity of {} bytes and {} objects", capacity, max_objects));
  }
  const Geometry geometry = Geometry::of(capacity, max_objects);
  if (header.total_bytes.get() != geometry.total_bytes || file_bytes != geometry.total_bytes) {
    return not_an_arena(fmt::format("it has {} bytes, claims {}, and its parts need {}", file_bytes,
                                    header.total_bytes.get(), geometry.total_bytes));
  }
  return geometry;
}

uint64_t span_of(uint64_t size, uint64_t key_bytes) noexcept {
  if (key_bytes <= kInlineKeyBytes) return round_to(size, kUnit);
  return round_to(round_to(size, 8) + key_bytes, kUnit);
}

}  // namespace stagelink::store::shm
