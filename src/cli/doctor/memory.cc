#include "cli/doctor/memory.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/runtime_dir.h"
#include "memory/memory_room.h"
#include "stagelink/store_options.h"

namespace stagelink::cli::doctor {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTinyShm = 8 << 20;  // Counters and sockets of a few engines fit.
constexpr const char* kWhyShm =
    "Arenas of stores lie there, and whatever else the host's programs share (torch, NCCL).";
constexpr const char* kLargerShm =
    "Give it more: `docker run --shm-size 8g`, `--ipc=host`, in Kubernetes an emptyDir of medium "
    "Memory on /dev/shm, or `mount -o remount,size=8g /dev/shm`.";

struct Space {
  uint64_t total = 0;
  uint64_t free = 0;
};

std::optional<Space> space_of(const std::string& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return std::nullopt;
  const uint64_t unit = info.f_frsize;
  return Space{info.f_blocks * unit, info.f_bavail * unit};
}

// What the configuration wants to lay into each folder and is not there yet.
std::map<std::string, uint64_t> wanted_by_folder(const Subject& subject) {
  std::map<std::string, uint64_t> out;
  for (const MemoryNeed& need : subject.memory) {
    if (need.file.empty()) continue;
    std::error_code error;
    uint64_t& bytes = out[fs::path(need.file).parent_path().string()];
    if (!fs::exists(need.file, error)) bytes += need.bytes;
  }
  return out;
}

Finding judge_space(const std::string& folder, uint64_t wanted, const Space& space) {
  const std::string what =
      fmt::format("{}: {} free of {}", folder, size_text(space.free), size_text(space.total));
  if (wanted > space.free) {
    return {Level::kError, "shm_small",
            fmt::format("{}, and the configuration asks for {}", what, size_text(wanted)),
            "A store reserves its arena when it is opened: that fails with no_space (shm_full).",
            std::string(kLargerShm) + " Or a smaller capacity."};
  }
  if (space.free < kTinyShm) {
    return {Level::kError, "shm_small", what + ": next to nothing can be shared", kWhyShm,
            kLargerShm};
  }
  const uint64_t usual = ArenaOptions().capacity;
  if (wanted == 0 && space.free < usual) {
    return {Level::kWarning, "shm_small",
            fmt::format("{}: less than the {} of one arena by default", what, size_text(usual)),
            kWhyShm, kLargerShm};
  }
  return fine(what);
}

void check_shm(const HostView& host, const Subject& subject, std::vector<Finding>& out) {
  std::map<std::string, uint64_t> folders = wanted_by_folder(subject);
  folders.try_emplace(host.shm, 0);
  for (const auto& [folder, wanted] : folders) {
    const auto space = space_of(folder);
    if (!space.has_value()) {
      out.push_back({Level::kError, "shm_missing",
                     fmt::format("{}: {}", folder, std::strerror(errno)), kWhyShm,
                     "mount -t tmpfs tmpfs " + folder});
      continue;
    }
    if (::access(folder.c_str(), R_OK | W_OK | X_OK) != 0) {
      out.push_back({Level::kError, "shm_forbidden",
                     fmt::format("{}: this user may not write there", folder), kWhyShm,
                     fmt::format("chmod 1777 {}, its usual mode", folder)});
      continue;
    }
    out.push_back(judge_space(folder, wanted, *space));
  }
}

// Memory that has no name: pools of transfer engines, regions.
void check_room(const Subject& subject, std::vector<Finding>& out) {
  uint64_t wanted = 0;
  for (const MemoryNeed& need : subject.memory) wanted += need.bytes;
  const memory::MemoryRoom room = memory::memory_room(-1);
  const std::string what = fmt::format("{} of memory can be taken", size_text(room.bytes));
  if (wanted <= room.bytes) {
    out.push_back(fine(what));
    return;
  }
  out.push_back({Level::kError, "memory_small",
                 fmt::format("{} ({}), and the configuration asks for {}", what, room.limit,
                             size_text(wanted)),
                 "Pools and arenas reserve their pages at once: the last ones fail with no_space.",
                 "Smaller pools (memory_pool_size, capacity), or a larger container."});
}

void check_runtime_dir(const Subject& subject, std::vector<Finding>& out) {
  auto folder = runtime_dir(subject.engine.runtime_dir);
  if (!folder.ok()) {
    out.push_back({Level::kError, "runtime_dir",
                   fmt::format("The runtime directory: {}", folder.status().message()),
                   "Engines put their sockets and counters there, and do not start without it.",
                   "Mend its owner and mode (0700), or name another one with runtime_dir."});
    return;
  }
  if (subject.engine.runtime_dir.empty() && folder->starts_with("/tmp/")) {
    out.push_back({Level::kWarning, "runtime_dir_tmp",
                   fmt::format("The runtime directory is {}", *folder),
                   "Programs that tidy /tmp up remove sockets of live engines.",
                   "Set XDG_RUNTIME_DIR, or runtime_dir, to a folder of this user."});
  } else {
    out.push_back(fine(fmt::format("The runtime directory is {}", *folder)));
  }
  remove_if_empty(*folder);
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : size_text(limit);
}

void check_memlock(const Subject& subject, std::vector<Finding>& out) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  uint64_t wanted = 0;
  for (const MemoryNeed& need : subject.memory) wanted += need.bytes;
  const std::string what = "Locked memory (RLIMIT_MEMLOCK): " + limit_text(limit.rlim_cur);
  constexpr uint64_t kSmall = 64 << 20;
  const bool small = limit.rlim_cur < std::max(wanted, kSmall);
  if (subject.engine.pin == Effort::kRequire && small) {
    out.push_back({Level::kError, "memlock",
                   fmt::format("{}, and the configuration says pin: require", what),
                   "Memory that may not be locked is refused with limit (memlock).",
                   "ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, --ulimit memlock=-1 "
                   "for Docker; or pin: try."});
  } else if (small) {
    out.push_back(note("memlock", what + ": enough unless memory is pinned or given to RDMA",
                       "For those: ulimit -l unlimited, LimitMEMLOCK=infinity, --ulimit "
                       "memlock=-1."));
  } else {
    out.push_back(fine(what));
  }
}

void check_nofile(const Subject& subject, std::vector<Finding>& out) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const uint64_t each = 3 + subject.engine.stream_stripes;  // Of one peer, about.
  constexpr uint64_t kOwn = 64;
  const uint64_t peers = limit.rlim_cur > kOwn ? (limit.rlim_cur - kOwn) / each : 0;
  const std::string what = fmt::format("Open files (RLIMIT_NOFILE): {}, enough for about {} peers",
                                       limit.rlim_cur, peers);
  constexpr uint64_t kFew = 100;
  if (peers >= kFew) {
    out.push_back(fine(what));
    return;
  }
  out.push_back({Level::kWarning, "nofile", what,
                 "Each connected peer takes about five descriptors, each allocated region one; "
                 "beyond the limit, connects and allocations fail with limit (nofile).",
                 fmt::format("ulimit -n 65536 (the hard limit is {}), LimitNOFILE= in the unit, "
                             "--ulimit nofile=65536 for Docker",
                             limit.rlim_max)});
}

}  // namespace

std::vector<Finding> check_memory(const HostView& host, const Subject& subject) {
  std::vector<Finding> out;
  check_shm(host, subject, out);
  check_room(subject, out);
  check_runtime_dir(subject, out);
  check_memlock(subject, out);
  check_nofile(subject, out);
  return out;
}

}  // namespace stagelink::cli::doctor
