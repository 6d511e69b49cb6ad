#pragma once

#include <cstdint>
#include <string>

#include "stagelink/status.h"

namespace stagelink::memory {

// How much memory the kernel would still give this process, and which limit says so.
struct MemoryRoom {
  uint64_t bytes = 0;
  std::string limit;  // "MemAvailable in /proc/meminfo is 123 MiB", or the file of a cgroup.
};

// The tightest of: the host's available memory (or that of one NUMA node, if `numa_node` >= 0) and
// the memory limits of this process's cgroup and its parents (v1 and v2). A margin is kept back.
// Reserving beyond a cgroup's limit does not fail, it kills: so it has to be asked before.
MemoryRoom memory_room(int32_t numa_node);

// Errors: no_space (shm_full) naming the limit, if there is less than `bytes`.
Status check_memory_room(uint64_t bytes, int32_t numa_node);

// "64 MiB", "1.5 GiB", "300 B": for messages.
std::string readable_bytes(uint64_t bytes);

}  // namespace stagelink::memory
