#pragma once

#include <cstdint>

#include <sys/types.h>

namespace stagelink {

// Names one life of one process on this host: a pid alone is given out again, a pid with its start
// time is not, and both mean something only inside their pid namespace.
struct ProcessId {
  int32_t pid = 0;
  uint64_t start_time = 0;     // Clock ticks since boot, field 22 of /proc/<pid>/stat.
  uint64_t pid_namespace = 0;  // Inode of /proc/self/ns/pid; 0 if unknown.

  static ProcessId self() noexcept;
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

enum class Liveness : uint8_t { kAlive, kDead, kUnknown };  // kUnknown: another pid namespace.

// A zombie is dead. When in doubt the answer is kAlive.
Liveness liveness_of(const ProcessId& process) noexcept;
// True if any process that is not a zombie has this pid here, whoever it is.
bool pid_in_use(pid_t pid) noexcept;

}  // namespace stagelink
