#include "memory/segment.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/random.h"
#include "memory/memfd.h"
#include "memory/memory_room.h"
#include "memory/page_options.h"
#include "wire/table_layout.h"

namespace stagelink::memory {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 46;  // Beyond what any host maps; keeps sums in range.

// The file of `bytes` of data: data rounded to pages (huge ones if wanted), then the trailer's
// page.
struct FileShape {
  size_t trailer_at = 0;
  size_t mapped = 0;
  size_t file = 0;
};

FileShape shape_of(size_t bytes, Effort huge_pages) {
  FileShape shape;
  shape.trailer_at = round_up(bytes, page_bytes());
  shape.file = shape.trailer_at + page_bytes();
  shape.mapped = shape.trailer_at;
  if (huge_pages != Effort::kOff) {
    // Whole huge pages only: the trailer then lies inside the last one.
    shape.file = round_up(shape.file, kHugePageBytes);
    shape.mapped = shape.file;
  }
  return shape;
}

Status write_trailer(int fd, size_t at, const wire::SegmentTrailer& trailer) {
  const ssize_t put = ::pwrite(fd, &trailer, sizeof trailer, static_cast<off_t>(at));
  if (put == static_cast<ssize_t>(sizeof trailer)) return {};
  return Status(Reason::kSystem, fmt::format("writing the trailer of a segment: {}",
                                             put < 0 ? strerror(errno) : "short write"));
}

// The order matters: node and advice hold for pages that do not exist yet; huge pages are gathered
// before pages are locked; prefaulting last sees the final page table.
Status furnish(int fd, std::span<std::byte> mapping, const FileShape& shape,
               const SegmentOptions& options) {
  SL_TRY(bind_to_node(mapping, options.numa_node));
  if (options.huge_pages != Effort::kOff && advise_huge_pages(mapping)) {
    SL_TRY(reserve_by_fault(mapping, options.numa_node));
  }
  SL_TRY(reserve_pages(fd, 0, shape.file, options.numa_node));
  if (options.huge_pages != Effort::kOff) {
    SL_TRY(gather_huge_pages(mapping, options.huge_pages));
  }
  if (options.pin != Effort::kOff) SL_TRY(pin_pages(mapping, options.pin));
  if (options.prefault != Effort::kOff) SL_TRY(prefault(mapping, options.prefault));
  return {};
}

}  // namespace

Result<Segment> Segment::create(size_t bytes, const SegmentOptions& options, InstanceId instance) {
  if (bytes == 0) return Status(Reason::kInvalidArgument, "a segment of 0 bytes");
  if (bytes > kMaxBytes) {
    return Status(Reason::kTooLarge, fmt::format("a segment of {}; the most is {}",
                                                 readable_bytes(bytes), readable_bytes(kMaxBytes)));
  }
  const FileShape shape = shape_of(bytes, options.huge_pages);
  SL_TRY(check_memory_room(shape.file, options.numa_node));
  Segment segment;
  SL_ASSIGN(segment.fd_, create_memfd("stagelink-region"));
  const int fd = segment.fd_.get();
  SL_TRY(size_memfd(fd, shape.file));
  SL_ASSIGN(const std::span<std::byte> mapping, map_shared(fd, shape.mapped, true));
  segment.bytes_ = mapping.first(bytes);
  segment.mapped_bytes_ = mapping.size();
  segment.nonce_ = random_u64();
  SL_TRY(furnish(fd, mapping, shape, options));
  const wire::SegmentTrailer trailer{wire::kTrailerMagic, instance.high, instance.low,
                                     segment.nonce_, bytes};
  SL_TRY(write_trailer(fd, shape.trailer_at, trailer));
  SL_TRY(seal_memfd(fd, options.access));
  return segment;
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      bytes_(std::exchange(other.bytes_, {})),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      nonce_(std::exchange(other.nonce_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  Segment old(std::move(other));
  std::swap(fd_, old.fd_);
  std::swap(bytes_, old.bytes_);
  std::swap(mapped_bytes_, old.mapped_bytes_);
  std::swap(nonce_, old.nonce_);
  return *this;
}

Segment::~Segment() { unmap({bytes_.data(), mapped_bytes_}); }

}  // namespace stagelink::memory
