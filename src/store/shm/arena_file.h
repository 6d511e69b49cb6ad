#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "stagelink/result.h"
#include "stagelink/store_options.h"

// The file of an arena: "<directory>/stagelink-<uid>.<name>.arena". All errors name it.
namespace stagelink::store::shm {

std::string arena_path(const ArenaOptions& options);

// One that is there. Errors: not_found; permission (other_user: it is somebody else's, or others
// may write to it); corrupt (no regular file); limit (nofile).
Result<UniqueFd> open_arena_file(const std::string& path);

// A new one of `bytes` without a name and without pages. It goes with its descriptor unless it is
// linked. Errors: no_space (shm_full: what is needed, what there is, what to do), not_found and
// permission (the directory), limit.
Result<UniqueFd> make_arena_file(const ArenaOptions& options, uint64_t bytes);
// Takes the pages of [from, to). Errors: no_space (shm_full).
Status reserve_arena_file(int fd, const ArenaOptions& options, uint64_t from, uint64_t to);
// Gives it its name. Errors: already_exists.
Status link_arena_file(int fd, const std::string& path);
// Takes the name away, if it still is this file's.
void unlink_arena_file(int fd, const std::string& path) noexcept;

// The size; corrupt if some of its pages are missing: touching those could fail.
Result<uint64_t> arena_file_bytes(int fd, const std::string& path);

// A process shows that it lives by a lock on one byte of the file, which the kernel takes away when
// its descriptor is closed: also across pid namespaces, and after exec().
bool lock_member_byte(int fd, uint32_t member) noexcept;
void unlock_member_byte(int fd,
                        uint32_t member) noexcept;  // Also where a child has the descriptor.
bool is_member_byte_locked(int fd, uint32_t member) noexcept;  // By another descriptor.

}  // namespace stagelink::store::shm
