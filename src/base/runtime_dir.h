#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/process_id.h"
#include "base/unique_fd.h"
#include "stagelink/region.h"
#include "stagelink/result.h"

namespace stagelink {

// The longest path of a runtime directory in which sockets can be bound.
inline constexpr size_t kMaxRuntimeDirBytes = 85;

// The directory that holds the sockets and counters of this user's engines: `configured` if not
// empty, else $XDG_RUNTIME_DIR/stagelink, else /dev/shm/stagelink-<uid>, else /tmp/stagelink-<uid>
// (with one warning). It is absolute, exists, belongs to this user and nobody else may write to it.
// A configured one that fails is an error and never replaced by another. Errors: permission
// (other_user for another owner) names path and mode; invalid_argument (too long for a socket);
// not_found (the parent is missing); no_space; limit; invalid_state (system).
//
// Another engine that closes may remove the directory while it is empty: whoever gets ENOENT for
// the first entry calls runtime_dir() again.
Result<std::string> runtime_dir(const std::string& configured);

// Where engines of this user may have put their entries, best first. Creates nothing.
std::vector<std::string> runtime_dir_candidates(const std::string& configured);

// "<dir>/<pid>-<first 8 digits of the instance>.<kind>", kind "sock", "pull", "stat" or "init".
std::string runtime_entry_path(const std::string& dir, pid_t pid, const InstanceId& instance,
                               std::string_view kind);

struct RuntimeEntry {
  pid_t pid = 0;
  std::string stem;  // "<pid>-<8 hex digits>"
  std::string kind;  // "sock", "pull", "stat", or "init": a .stat file that is not whole yet.
};
// Empty unless `file_name` (no directory) is exactly of that form.
std::optional<RuntimeEntry> parse_runtime_entry(std::string_view file_name);

// The first bytes of every .stat file: by them anybody can tell whether its engine lives. The owner
// also keeps an exclusive flock(2) on the file for as long as it lives.
struct EntryOwner {
  static constexpr uint64_t kMagic = 0x31544154534c5473;  // "sTLSTAT1"
  uint64_t magic = kMagic;
  int32_t pid = 0;
  uint32_t reserved = 0;
  uint64_t start_time = 0;
  uint64_t pid_namespace = 0;
};
static_assert(sizeof(EntryOwner) == 32);

// Creates the .init file of an entry, empty and with the owner's lock. Renaming it is how a .stat
// file appears: whole and locked. Errors name the path; whatever goes wrong, no file is left.
Result<UniqueFd> create_init_entry(const std::string& path);

// Removes the entries whose process is dead, and never a live one's: a process of this pid
// namespace is judged by pid and start time, one of another by its lock. An .init file goes as soon
// as nobody holds its lock, a socket without a .stat file when nobody listens, its pid is free and
// it is older than 5 seconds. Returns how many files went.
int reclaim_dead_entries(const std::string& dir);

// At engine close. Does nothing if anything is left inside.
void remove_if_empty(const std::string& dir) noexcept;

}  // namespace stagelink
