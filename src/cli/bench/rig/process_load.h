#pragma once

#include <cstdint>
#include <string>

#include <sys/types.h>

#include "stagelink/status.h"

namespace stagelink::cli::bench {

// Restricts the calling thread, and all threads that it starts from now on, to one core.
// Errors: invalid_argument, naming the core and the system's answer.
Status pin_to_core(int core);

// CPU time that all threads of a process have used, in microseconds; 0 if it is gone.
double cpu_time_us(pid_t process) noexcept;

// Time that the threads of a process were ready to run but had to wait for a core, in microseconds.
// It grows only where something else wants the same core.
double queue_wait_us(pid_t process);

// Resident memory of this process, in bytes.
uint64_t resident_bytes();
// The same, with shared pages divided among their users (Pss); 0 if the kernel does not tell.
uint64_t memory_share_bytes();

// Lets this process open as many files as the system allows it at most.
void raise_file_limit() noexcept;

double now_us() noexcept;

}  // namespace stagelink::cli::bench
