#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

#include "memory/memfd.h"
#include "memory/memory_room.h"
#include "memory/segment.h"

namespace stagelink::memory {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 36;

// Pages that are hot from the start. Larger ones (the region table) fill as they are used.
constexpr size_t kPopulateAtOnce = 64 << 10;

}  // namespace

Result<SharedPages> SharedPages::create(const char* name, size_t bytes, Peers peers) {
  if (bytes == 0 || bytes > kMaxBytes) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("{} shared pages of {} bytes", name, bytes));
  }
  SharedPages pages;
  SL_ASSIGN(pages.fd_, create_memfd(name));
  const int fd = pages.fd_.get();
  const size_t size = round_up(bytes, page_bytes());
  SL_TRY(size_memfd(fd, size));
  SL_TRY(reserve_pages(fd, 0, size, -1));
  SL_ASSIGN(pages.bytes_, map_shared(fd, size, true));
  SL_TRY(seal_memfd(fd, peers == Peers::kMayRead ? Access::kReadOnly : Access::kReadWrite));
  // A page that is not in the page table yet costs a fault later and nothing else.
  if (size <= kPopulateAtOnce) (void)populate(pages.bytes_, Populate::kForWriting);
  return pages;
}

Result<SharedPages> SharedPages::create_unshared(size_t bytes) {
  const size_t size = round_up(bytes, page_bytes());
  void* const at =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return Status(Reason::kLimit,
                  fmt::format("mapping {}: {}", readable_bytes(size), strerror(errno)));
  }
  SharedPages pages;
  pages.bytes_ = {static_cast<std::byte*>(at), size};
  return pages;
}

Result<SharedPages> SharedPages::open(UniqueFd fd, size_t bytes, bool writable) {
  if (bytes == 0 || bytes > kMaxBytes) {
    return Status(Reason::kCorrupt, fmt::format("shared pages of {} bytes", bytes));
  }
  const size_t size = round_up(bytes, page_bytes());
  SL_TRY(check_foreign_memfd(fd.get(), size));
  SharedPages pages;
  SL_ASSIGN(pages.bytes_, map_shared(fd.get(), size, writable));
  if (const int error = populate(pages.bytes_, Populate::kForReading); error != 0) {
    return Status(Reason::kLimit, fmt::format("filling the page table for {} of shared pages: {}",
                                              readable_bytes(size), strerror(error)));
  }
  return pages;
}

SharedPages::SharedPages(SharedPages&& other) noexcept
    : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedPages& SharedPages::operator=(SharedPages&& other) noexcept {
  SharedPages old(std::move(other));
  std::swap(fd_, old.fd_);
  std::swap(bytes_, old.bytes_);
  return *this;
}

SharedPages::~SharedPages() { unmap(bytes_); }

}  // namespace stagelink::memory
