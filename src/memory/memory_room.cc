#include "memory/memory_room.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace stagelink::memory {
namespace {

constexpr uint64_t kMargin = 16 << 20;  // For page tables and everybody else's next allocation.

// Files of /proc and /sys, which are small; empty if there is none.
std::string read_small_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd) return text;
  char chunk[4096];
  while (text.size() < (64 << 10)) {
    const ssize_t got = ::read(fd.get(), chunk, sizeof chunk);
    if (got <= 0) break;
    text.append(chunk, static_cast<size_t>(got));
  }
  return text;
}

std::optional<uint64_t> parse_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{}) return std::nullopt;
  return value;
}

// The number behind `key` in "key number" lines.
std::optional<uint64_t> field(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  return parse_number(text.substr(at + key.size()));
}

void tighten(MemoryRoom& room, uint64_t bytes, std::string limit) {
  bytes = bytes > kMargin ? bytes - kMargin : 0;
  if (bytes >= room.bytes) return;
  room.bytes = bytes;
  room.limit = std::move(limit);
}

void tighten_to_host(MemoryRoom& room) {
  const std::string text = read_small_file("/proc/meminfo");
  const auto available = field(text, "MemAvailable:");
  if (!available) return;
  const uint64_t bytes = (*available + field(text, "SwapFree:").value_or(0)) << 10;
  tighten(room, bytes,
          fmt::format("MemAvailable and SwapFree in /proc/meminfo are {}", readable_bytes(bytes)));
}

void tighten_to_node(MemoryRoom& room, int32_t node) {
  const std::string path = fmt::format("/sys/devices/system/node/node{}/meminfo", node);
  const std::string text = read_small_file(path);
  const auto free = field(text, "MemFree:");
  if (!free) return;
  const uint64_t reclaimable =
      field(text, "Active(file):").value_or(0) / 2 + field(text, "Inactive(file):").value_or(0);
  const uint64_t bytes = (*free + reclaimable) << 10;
  tighten(room, bytes, fmt::format("free memory in {} is {}", path, readable_bytes(bytes)));
}

// Where one kind of cgroup keeps what.
struct CgroupFiles {
  std::string root;
  const char* limit;
  const char* usage;
  const char* reclaimable;  // Field of memory.stat.
};

void tighten_to_group(MemoryRoom& room, const CgroupFiles& files, const std::string& group) {
  const std::string folder = files.root + group + "/";
  const auto limit = parse_number(read_small_file(folder + files.limit));  // None for "max".
  const auto usage = parse_number(read_small_file(folder + files.usage));
  if (!limit || !usage) return;
  const uint64_t cache =
      field(read_small_file(folder + "memory.stat"), files.reclaimable).value_or(0);
  const uint64_t used = *usage > cache ? *usage - cache : 0;
  tighten(room, *limit > used ? *limit - used : 0,
          fmt::format("{}{} is {}, of which {} are in use", folder, files.limit,
                      readable_bytes(*limit), readable_bytes(used)));
}

// The group named by `path` and all its parents: each may be the tightest. In a container the path
// may be one of the host that is not visible here; the root of the mount then is the group.
void tighten_to_groups(MemoryRoom& room, const CgroupFiles& files, std::string path) {
  while (true) {
    tighten_to_group(room, files, path);
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || path.empty()) return;
    path.resize(slash);
  }
}

void tighten_to_cgroups(MemoryRoom& room) {
  const std::string text = read_small_file("/proc/self/cgroup");
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.substr(0, 3) == "0::") {
      const CgroupFiles v2{"/sys/fs/cgroup", "memory.max", "memory.current", "\ninactive_file "};
      tighten_to_groups(room, v2, std::string(line.substr(3)));
    } else if (const size_t at = line.find(":memory:"); at != std::string_view::npos) {
      const CgroupFiles v1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                           "memory.usage_in_bytes", "\ntotal_inactive_file "};
      tighten_to_groups(room, v1, std::string(line.substr(at + 8)));
    }
  }
}

}  // namespace

MemoryRoom memory_room(int32_t numa_node) {
  MemoryRoom room{std::numeric_limits<uint64_t>::max(), "no limit is known"};
  tighten_to_host(room);
  if (numa_node >= 0) tighten_to_node(room, numa_node);
  tighten_to_cgroups(room);
  return room;
}

Status check_memory_room(uint64_t bytes, int32_t numa_node) {
  const MemoryRoom room = memory_room(numa_node);
  if (bytes <= room.bytes) return {};
  return Status(Reason::kShmFull,
                fmt::format("{} of shareable memory are still needed, but only {} may be taken: {}",
                            readable_bytes(bytes), readable_bytes(room.bytes), room.limit));
}

std::string readable_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  auto value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  const bool whole = bytes % (uint64_t{1} << (10 * unit)) == 0;
  return whole ? fmt::format("{:.0f} {}", value, kUnits[unit])
               : fmt::format("{:.1f} {} ({} B)", value, kUnits[unit], bytes);
}

}  // namespace stagelink::memory
