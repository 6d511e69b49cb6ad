#include "cli/replay/rank/huge_memory.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

namespace stagelink::cli::replay {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kSmallPage = 4096;

}  // namespace

Result<HugeMemory> HugeMemory::create(size_t bytes) {
  const size_t mapped = bytes + kHugePage;
  void* const at =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return Status(Reason::kNoSpace,
                  fmt::format("mapping {} bytes: {}", mapped, std::strerror(errno)));
  }
  const std::span<std::byte> mapping(static_cast<std::byte*>(at), mapped);
  const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(at) % kHugePage) % kHugePage;
  const auto aligned = mapping.subspan(skip, bytes);
  ::madvise(aligned.data(), aligned.size(), MADV_HUGEPAGE);  // A wish; small pages work as well.
  for (size_t page = 0; page < aligned.size(); page += kSmallPage) aligned[page] = std::byte{0};
  return HugeMemory(mapping, aligned);
}

HugeMemory::HugeMemory(HugeMemory&& other) noexcept
    : mapping_(std::exchange(other.mapping_, {})), bytes_(std::exchange(other.bytes_, {})) {}

HugeMemory& HugeMemory::operator=(HugeMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HugeMemory::~HugeMemory() {
  if (!mapping_.empty()) ::munmap(mapping_.data(), mapping_.size());
}

}  // namespace stagelink::cli::replay
