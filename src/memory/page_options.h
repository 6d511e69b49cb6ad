#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stagelink/engine_options.h"
#include "stagelink/status.h"

// Properties of mapped memory that a host may or may not grant. With kTry a refusal is one warning;
// with kRequire it is the failure that is returned, naming the limit, its value and the request.
namespace stagelink::memory {

// Before any page exists. -1 is any node. Errors: limit (numa) names the node and those there are.
Status bind_to_node(std::span<std::byte> mapping, int32_t numa_node);
// True if the kernel makes huge pages of shared memory that is advised so before it exists.
bool advise_huge_pages(std::span<std::byte> mapping) noexcept;
// After the pages exist: gathers them. Errors: limit (huge_pages) names shmem_enabled and its
// value.
Status gather_huge_pages(std::span<std::byte> mapping, Effort effort);
// Fills the page table. Errors: no_space.
Status prefault(std::span<std::byte> mapping, Effort effort);
// Locks the pages. Errors: limit (memlock) names RLIMIT_MEMLOCK.
Status pin_pages(std::span<std::byte> mapping, Effort effort);

}  // namespace stagelink::memory
