#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/unique_fd.h"
#include "stagelink/region.h"
#include "stagelink/result.h"

// What shareable memory is made of: files without a name. Every call turns the kernel's answer into
// a Status that names the limit that was met.
namespace stagelink::memory {

inline constexpr size_t kHugePageBytes = 2 << 20;

size_t page_bytes() noexcept;
constexpr size_t round_up(size_t value, size_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

// Close-on-exec, sealable, and never executable where the kernel can promise that.
// Errors: limit (nofile).
Result<UniqueFd> create_memfd(const char* name);

// Sets the size, without pages. Errors: limit (too_large) naming RLIMIT_FSIZE; a plain ftruncate
// beyond it would raise SIGXFSZ.
Status size_memfd(int fd, size_t bytes);

// Takes the pages of [from, to) from the kernel, so that no later touch can fail. In small steps:
// each asks first how much room there is (a cgroup's limit kills instead of failing), and a step
// that a signal interrupts is undone by the kernel and tried again with half the size. Errors:
// no_space (shm_full).
Status reserve_pages(int fd, size_t from, size_t to, int32_t numa_node);

// The same for the file behind a mapping by writing to it, which makes huge pages where the kernel
// was advised to: fallocate() does not know the mapping and takes small ones.
Status reserve_by_fault(std::span<std::byte> mapping, int32_t numa_node);

// No peer can change the size, add seals, or (read-only) write or map for writing. The owner's
// mapping, made before, stays writable.
Status seal_memfd(int fd, Access peers);

// Before the memory of another process is mapped: a memfd of at least `bytes`, which cannot shrink
// and has all its pages, so that no access here can fault. With holes allowed, an access may have
// to make a page. Errors: corrupt.
enum class Holes : uint8_t { kRefused, kAllowed };
Status check_foreign_memfd(int fd, size_t bytes, Holes holes = Holes::kRefused);

// A shared mapping of [0, bytes) that starts at a multiple of kHugePageBytes. Errors: limit naming
// RLIMIT_AS and vm.max_map_count; corrupt if a seal forbids writing.
Result<std::span<std::byte>> map_shared(int fd, size_t bytes, bool writable);

// Fills the page table of a mapping. Gives 0 or an errno; falls back to touching each page on
// kernels without MADV_POPULATE_*.
enum class Populate : uint8_t { kForReading, kForWriting };
int populate(std::span<std::byte> mapping, Populate how) noexcept;

void unmap(std::span<std::byte> mapping) noexcept;

}  // namespace stagelink::memory
