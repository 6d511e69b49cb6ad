#include "transport/stream/staging_area.h"

#include <utility>

#include <sys/mman.h>

#include "memory/memfd.h"

namespace stagelink::transport {
namespace {

constexpr size_t kBytes = 2 * StagingArea::kHalfBytes;

Result<std::span<std::byte>> map(int fd) {
  SL_ASSIGN(const std::span<std::byte> bytes, memory::map_shared(fd, kBytes, /*writable=*/true));
  // Bytes on their way have no place in a core file.
  ::madvise(bytes.data(), bytes.size(), MADV_DONTDUMP);
  return bytes;
}

}  // namespace

Result<StagingArea> StagingArea::create() {
  StagingArea area;
  SL_ASSIGN(area.fd_, memory::create_memfd("stagelink-staging"));
  SL_TRY(memory::size_memfd(area.fd_.get(), kBytes));
  SL_TRY(memory::seal_memfd(area.fd_.get(), Access::kReadWrite));
  SL_ASSIGN(area.bytes_, map(area.fd_.get()));
  return area;
}

Result<StagingArea> StagingArea::open(UniqueFd fd) {
  SL_TRY(memory::check_foreign_memfd(fd.get(), kBytes, memory::Holes::kAllowed));
  StagingArea area;
  SL_ASSIGN(area.bytes_, map(fd.get()));
  return area;
}

StagingArea::StagingArea(StagingArea&& other) noexcept
    : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}

StagingArea& StagingArea::operator=(StagingArea&& other) noexcept {
  StagingArea old(std::move(other));
  std::swap(fd_, old.fd_);
  std::swap(bytes_, old.bytes_);
  return *this;
}

StagingArea::~StagingArea() { memory::unmap(bytes_); }

}  // namespace stagelink::transport
