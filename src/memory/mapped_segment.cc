#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memfd.h"
#include "memory/memory_room.h"
#include "memory/segment.h"
#include "wire/table_layout.h"

namespace stagelink::memory {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 46;

// Read with pread, once, so that what was checked cannot change afterwards.
Status check_trailer(int fd, size_t at, const RegionDesc& desc) {
  wire::SegmentTrailer trailer{};
  if (::pread(fd, &trailer, sizeof trailer, static_cast<off_t>(at)) !=
      static_cast<ssize_t>(sizeof trailer)) {
    return Status(Reason::kCorrupt, "the trailer of the peer's segment cannot be read");
  }
  if (trailer.magic != wire::kTrailerMagic) {
    return Status(Reason::kCorrupt,
                  "the peer's memfd is not a segment: no trailer behind the data");
  }
  const InstanceId instance{trailer.instance_high, trailer.instance_low};
  if (instance != desc.instance) {
    return Status(Reason::kCorrupt,
                  fmt::format("the segment belongs to instance {}, the descriptor to {}",
                              instance.to_string(), desc.instance.to_string()));
  }
  if (trailer.nonce != desc.nonce) {
    return Status(Reason::kSuperseded,
                  fmt::format("region {} was replaced: nonce {:016x} is now {:016x}", desc.index,
                              desc.nonce, trailer.nonce));
  }
  if (trailer.bytes != desc.bytes) {
    return Status(Reason::kCorrupt, fmt::format("the segment has {} bytes, the descriptor says {}",
                                                trailer.bytes, desc.bytes));
  }
  return {};
}

}  // namespace

Result<MappedSegment> MappedSegment::map(const UniqueFd& fd, const RegionDesc& desc) {
  if (desc.bytes == 0 || desc.bytes > kMaxBytes) {
    return Status(Reason::kCorrupt, fmt::format("a region descriptor of {} bytes", desc.bytes));
  }
  const size_t trailer_at = round_up(desc.bytes, page_bytes());
  SL_TRY(check_foreign_memfd(fd.get(), trailer_at + page_bytes()));
  SL_TRY(check_trailer(fd.get(), trailer_at, desc));

  MappedSegment segment;
  segment.writable_ = desc.access == Access::kReadWrite;
  SL_ASSIGN(const std::span<std::byte> mapping,
            map_shared(fd.get(), desc.bytes, segment.writable_));
  segment.bytes_ = mapping.first(desc.bytes);
  segment.mapped_bytes_ = mapping.size();
  // Somebody else's memory has no place in our core file, where it would come once for each peer.
  ::madvise(mapping.data(), mapping.size(), MADV_DONTDUMP);
  // For reading also where we may write: shared memory needs no second fault for the first write,
  // and filling for writing takes four times as long.
  if (const int error = populate(mapping, Populate::kForReading); error != 0) {
    return Status(Reason::kLimit,
                  fmt::format("filling the page table for {} of a peer's memory: {}",
                              readable_bytes(mapping.size()), strerror(error)));
  }
  return segment;
}

MappedSegment::MappedSegment(MappedSegment&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      writable_(std::exchange(other.writable_, false)) {}

MappedSegment& MappedSegment::operator=(MappedSegment&& other) noexcept {
  MappedSegment old(std::move(other));
  std::swap(bytes_, old.bytes_);
  std::swap(mapped_bytes_, old.mapped_bytes_);
  std::swap(writable_, old.writable_);
  return *this;
}

MappedSegment::~MappedSegment() { unmap({bytes_.data(), mapped_bytes_}); }

}  // namespace stagelink::memory
