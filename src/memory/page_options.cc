#include "memory/page_options.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/unique_fd.h"
#include "memory/memfd.h"
#include "memory/memory_room.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace stagelink::memory {
namespace {

constexpr const char* kShmemEnabled = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
constexpr const char* kNodesOnline = "/sys/devices/system/node/online";

std::string read_line(const char* path) {
  UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  char text[256];
  const ssize_t got = fd ? ::read(fd.get(), text, sizeof text) : -1;
  if (got <= 0) return "not there";
  std::string line(text, static_cast<size_t>(got));
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line;
}

// What a refusal amounts to.
Status settle(Effort effort, Status refusal) {
  if (effort == Effort::kRequire) return refusal;
  log(LogLevel::kWarning, "memory", std::string(refusal.message()) + "; going on without");
  return {};
}

// Gives 0 or the errno of the piece that could not be gathered.
int collapse(std::span<std::byte> mapping) noexcept {
  constexpr int kTries = 4;  // EAGAIN: a page was in somebody's hands for a moment.
  for (size_t at = 0; at < mapping.size(); at += kHugePageBytes) {
    const size_t length = std::min(kHugePageBytes, mapping.size() - at);
    int error = 0;
    for (int i = 0; i < kTries; ++i) {
      error = ::madvise(mapping.data() + at, length, MADV_COLLAPSE) == 0 ? 0 : errno;
      if (error != EAGAIN && error != EBUSY) break;
    }
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace

Status bind_to_node(std::span<std::byte> mapping, int32_t numa_node) {
  constexpr int kMaxNodes = 1024;
  constexpr int kBind =
      2;  // MPOL_BIND of <numaif.h>, which comes with a library that we do not need.
  if (numa_node < 0) return {};
  int error = EINVAL;
  if (numa_node < kMaxNodes) {
    std::array<unsigned long, kMaxNodes / 64> mask{};
    const auto node = static_cast<size_t>(numa_node);
    mask[node / 64] = 1UL << (node % 64);
    if (::syscall(SYS_mbind, mapping.data(), mapping.size(), kBind, mask.data(),
                  static_cast<unsigned long>(kMaxNodes) + 1, 0) == 0) {
      return {};
    }
    error = errno;
    if (error == ENOSYS && numa_node == 0) return {};  // A kernel that knows one node only.
  }
  return Status(Reason::kNuma, fmt::format("binding {} to NUMA node {}: {}; {} is {}",
                                           readable_bytes(mapping.size()), numa_node,
                                           strerror(error), kNodesOnline, read_line(kNodesOnline)));
}

bool advise_huge_pages(std::span<std::byte> mapping) noexcept {
  const std::string enabled = read_line(kShmemEnabled);
  if (enabled.find("[never]") != std::string::npos || enabled.find("[deny]") != std::string::npos) {
    return false;
  }
  return ::madvise(mapping.data(), mapping.size(), MADV_HUGEPAGE) == 0;
}

Status gather_huge_pages(std::span<std::byte> mapping, Effort effort) {
  const size_t whole = mapping.size() / kHugePageBytes * kHugePageBytes;
  const int error = whole == mapping.size() ? collapse(mapping) : EINVAL;
  if (error == 0) return {};
  return settle(effort, Status(Reason::kHugePages,
                               fmt::format("huge pages for {} of shareable memory: {}; {} is {}",
                                           readable_bytes(mapping.size()), strerror(error),
                                           kShmemEnabled, read_line(kShmemEnabled))));
}

Status prefault(std::span<std::byte> mapping, Effort effort) {
  const int error = populate(mapping, Populate::kForWriting);
  if (error == 0) return {};
  return settle(effort, Status(Reason::kNoSpace,
                               fmt::format("filling the page table for {}: {}",
                                           readable_bytes(mapping.size()), strerror(error))));
}

Status pin_pages(std::span<std::byte> mapping, Effort effort) {
  if (::mlock(mapping.data(), mapping.size()) == 0) return {};
  const int error = errno;
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string value =
      limit.rlim_cur == RLIM_INFINITY ? std::string("unlimited") : readable_bytes(limit.rlim_cur);
  return settle(effort,
                Status(Reason::kMemlock,
                       fmt::format("locking {}: {}; RLIMIT_MEMLOCK is {} for the whole process",
                                   readable_bytes(mapping.size()), strerror(error), value)));
}

}  // namespace stagelink::memory
