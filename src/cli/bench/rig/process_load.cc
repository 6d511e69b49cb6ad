#include "cli/bench/rig/process_load.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace stagelink::cli::bench {

namespace {

double clock_us(clockid_t clock) noexcept {
  timespec time{};
  if (::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

}  // namespace

Status pin_to_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (core < 0 || core >= CPU_SETSIZE) {
    return Status(Reason::kInvalidArgument, fmt::format("core {} does not exist", core));
  }
  CPU_SET(static_cast<size_t>(core), &cores);
  if (::sched_setaffinity(0, sizeof cores, &cores) == 0) return Status();
  return Status(Reason::kInvalidArgument,
                fmt::format("cannot run on core {} alone: {}; --no-pin lets the kernel choose",
                            core, std::strerror(errno)));
}

double cpu_time_us(pid_t process) noexcept {
  clockid_t clock{};
  if (::clock_getcpuclockid(process, &clock) != 0) return 0;
  return clock_us(clock);
}

double queue_wait_us(pid_t process) {
  double total_us = 0;
  std::error_code ignored;
  const std::filesystem::directory_iterator threads(fmt::format("/proc/{}/task", process), ignored);
  for (const auto& thread : threads) {
    std::ifstream file(thread.path() / "schedstat");
    double run_ns = 0;
    double wait_ns = 0;
    if (file >> run_ns >> wait_ns) total_us += wait_ns * 1e-3;
  }
  return total_us;
}

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total_pages = 0;
  uint64_t resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

uint64_t memory_share_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    uint64_t kib = 0;
    if (word == "Pss:" && file >> kib) return kib << 10;
  }
  return 0;
}

void raise_file_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

double now_us() noexcept { return clock_us(CLOCK_MONOTONIC); }

}  // namespace stagelink::cli::bench
