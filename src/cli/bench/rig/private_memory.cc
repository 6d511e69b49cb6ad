#include "cli/bench/rig/private_memory.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>

namespace stagelink::cli::bench {

Result<PrivateMemory> PrivateMemory::create(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t mapped = bytes + kHugePage;
  void* const at =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return Status(Reason::kNoSpace,
                  fmt::format("cannot map {} bytes: {}", mapped, std::strerror(errno)));
  }
  PrivateMemory memory;
  memory.mapping_ = {static_cast<std::byte*>(at), mapped};
  const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(at) % kHugePage) % kHugePage;
  memory.bytes_ = memory.mapping_.subspan(skip, bytes);
  // A kernel without huge pages refuses; the memory is as good, only slower.
  (void)::madvise(memory.bytes_.data(), bytes, MADV_HUGEPAGE);
  std::memset(memory.bytes_.data(), 1, bytes);
  return memory;
}

PrivateMemory::~PrivateMemory() {
  if (!mapping_.empty()) ::munmap(mapping_.data(), mapping_.size());
}

}  // namespace stagelink::cli::bench
