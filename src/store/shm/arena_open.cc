#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/process_id.h"
#include "base/random.h"
#include "memory/memfd.h"
#include "memory/memory_room.h"
#include "store/shm/arena.h"
#include "store/shm/arena_file.h"

// How an arena comes to be.
//
// 1. A new file is linked under its name with its lock held and its state kMaking; whoever finds it
//    waits for the lock. Whoever gets it from a maker that died makes the arena himself.
// 2. The space is reserved under the name, so that two makers do not reserve it twice.
// 3. A file that is removed says so under its lock: whoever waited for it starts over.
namespace stagelink::store::shm {
namespace {

constexpr int kMaxTries = 1000;  // Each has met an arena that was removed meanwhile.

// How long the lock may be held by others. Taking pages is the slow part of making an arena; a
// second for a GiB is usual.
Duration patience(const Header& header, uint64_t bytes, Duration lock_timeout) noexcept {
  const bool making =
      header.state.load(std::memory_order_relaxed) == static_cast<uint32_t>(ArenaState::kMaking);
  return making ? lock_timeout + std::chrono::seconds(10 + 5 * (bytes >> 30)) : lock_timeout;
}

Status removed_meanwhile() { return Status(Reason::kSuperseded, "the arena is being removed"); }

}  // namespace

struct Arena::Mapped {
  UniqueFd fd;
  std::span<std::byte> mapping;
  Geometry geometry;
};

Arena::Arena(const ArenaOptions& options, Mapped mapped, Pauses pauses)
    : options_(options),
      path_(arena_path(options)),
      pauses_(pauses),
      fd_(std::move(mapped.fd)),
      mapping_(mapped.mapping),
      fork_token_(ForkGuard::arm()),
      map_(mapping_, mapped.geometry),
      objects_(map_, pauses_) {}

Result<std::shared_ptr<Arena>> Arena::open(const ArenaOptions& options, Pauses pauses) {
  for (int tries = 0; tries < kMaxTries; ++tries) {
    auto arena = try_open(options, pauses);
    const Reason reason = arena.status().reason();
    if (reason == Reason::kSuperseded) continue;
    if (!arena.ok()) log_failure("store", arena.status());
    return arena;
  }
  return Status(Reason::kBusy,
                fmt::format("{}: removed and made anew all the time", arena_path(options)));
}

Result<std::shared_ptr<Arena>> Arena::try_open(const ArenaOptions& options, Pauses pauses) {
  auto fd = open_arena_file(arena_path(options));
  if (fd.ok()) return join(options, *std::move(fd), pauses);
  if (fd.status().reason() != Reason::kNotFound) return fd.status();
  if (options.capacity == 0) {
    return Status(Reason::kNotFound,
                  fmt::format("arena `{}`: there is none ({})", options.name, arena_path(options)));
  }
  return make(options, pauses);
}

Result<std::shared_ptr<Arena>> Arena::make(const ArenaOptions& options, Pauses pauses) {
  const Geometry geometry = Geometry::of(options.capacity, options.max_objects);
  SL_ASSIGN(UniqueFd fd, make_arena_file(options, geometry.total_bytes));
  SL_TRY(reserve_arena_file(fd.get(), options, 0, sizeof(Header)));
  SL_ASSIGN(const std::span<std::byte> mapping,
            memory::map_shared(fd.get(), geometry.total_bytes, /*writable=*/true));
  std::shared_ptr<Arena> arena(new Arena(options, {std::move(fd), mapping, geometry}, pauses));
  Header& header = arena->map_.header();
  header.magic.set(kMagic);
  header.major.set(kLayoutMajor);
  header.minor.set(kLayoutMinor);
  header.total_bytes.set(geometry.total_bytes);
  header.capacity.set(geometry.capacity);
  header.max_objects.set(options.max_objects);
  header.lock_bytes.set(sizeof(pthread_mutex_t));
  header.hash_seed.set(random_u64());
  header.next_generation.set(1);
  header.lock_holder.set(::getpid());
  if (!RobustMutex::init(header.lock)) {
    return Status(Reason::kSystem, "a robust mutex between processes cannot be made here");
  }
  // Nobody else sees it yet.
  if (RobustMutex(header.lock).try_lock() != LockAnswer::kHeld) {
    return Status(Reason::kSystem, "a fresh mutex cannot be locked");
  }
  Locked locked(*arena);
  const Status linked = link_arena_file(arena->fd_.get(), arena->path_);
  if (linked.reason() == Reason::kAlreadyExists) return removed_meanwhile();
  SL_TRY(linked);
  pauses.at(PausePoint::kMakeLinked);
  SL_TRY(arena->finish_making());
  SL_TRY(arena->take_row());
  return arena;
}

// Under the lock, of a file that has its name. Also goes on where another maker has died.
Status Arena::finish_making() {
  Header& header = map_.header();
  Status status = reserve_arena_file(fd_.get(), options_, 0, map_.geometry().total_bytes);
  pauses_.at(PausePoint::kMakeReserved);
  if (status.ok()) status = objects_.rebuild();
  if (!status.ok()) {
    header.state.store(static_cast<uint32_t>(ArenaState::kRemoved), std::memory_order_release);
    unlink_arena_file(fd_.get(), path_);
    return status;
  }
  header.state.store(static_cast<uint32_t>(ArenaState::kReady), std::memory_order_release);
  return {};
}

Result<std::shared_ptr<Arena>> Arena::join(const ArenaOptions& options, UniqueFd fd,
                                           Pauses pauses) {
  const std::string path = arena_path(options);
  const auto first = std::make_unique<Header>();
  if (::pread(fd.get(), static_cast<void*>(first.get()), sizeof(Header), 0) !=
      static_cast<ssize_t>(sizeof(Header))) {
    return Status(Reason::kCorrupt, fmt::format("{}: too short for an arena", path));
  }
  const auto file_bytes = static_cast<uint64_t>(::lseek(fd.get(), 0, SEEK_END));
  auto geometry = check_header(*first, file_bytes);
  if (!geometry.ok()) {
    return Status(geometry.status().reason(),
                  fmt::format("{}: {}", path, geometry.status().message()));
  }
  SL_ASSIGN(const std::span<std::byte> mapping,
            memory::map_shared(fd.get(), file_bytes, /*writable=*/true));
  std::shared_ptr<Arena> arena(new Arena(options, {std::move(fd), mapping, *geometry}, pauses));
  RobustMutex mutex(arena->map_.header().lock);
  if (!mutex.is_sane()) {
    return Status(Reason::kCorrupt, fmt::format("{}: its lock is of another kind", path));
  }
  const LockAnswer answer =
      mutex.lock(Deadline::in(patience(arena->map_.header(), file_bytes, options.lock_timeout)));
  if (answer == LockAnswer::kTimedOut || answer == LockAnswer::kBroken) {
    return Status(answer == LockAnswer::kTimedOut ? Reason::kTimedOut : Reason::kCorrupt,
                  fmt::format("{}: process {} holds its lock and does not give it back; is it "
                              "stopped?",
                              path, arena->lock_holder()));
  }
  if (answer == LockAnswer::kHolderDied) mutex.mark_consistent();
  Locked locked(*arena);
  SL_TRY(arena->enter_existing(locked, answer));
  return arena;
}

// Under the lock.
Status Arena::enter_existing(const Locked& locked, LockAnswer answer) {
  Header& header = map_.header();
  header.lock_holder.set(::getpid());
  const auto state = static_cast<ArenaState>(header.state.load(std::memory_order_acquire));
  if (state == ArenaState::kRemoved) {
    unlink_arena_file(fd_.get(), path_);  // Whoever removed it may have died before this.
    return removed_meanwhile();
  }
  if (state == ArenaState::kMaking) {
    SL_TRY(check_options());
    SL_TRY(finish_making());
    return take_row();
  }
  SL_TRY(arena_file_bytes(fd_.get(), path_).status());
  if (answer == LockAnswer::kHolderDied) SL_TRY(repair());
  SL_TRY(broken());
  (void)sweep_dead(locked);
  if (live_others() == 0 && header.keep.get() == 0) {
    // Nobody is left who could have removed it. What it holds belongs to a run that is over.
    header.state.store(static_cast<uint32_t>(ArenaState::kRemoved), std::memory_order_release);
    unlink_arena_file(fd_.get(), path_);
    return removed_meanwhile();
  }
  SL_TRY(check_options());
  return take_row();
}

Status Arena::check_options() const {
  if (options_.capacity == 0) return {};
  const Geometry& there = map_.geometry();
  const Geometry wanted = Geometry::of(options_.capacity, options_.max_objects);
  if (wanted.capacity == there.capacity && wanted.max_objects == there.max_objects) return {};
  return Status(
      Reason::kAlreadyExists,
      fmt::format("arena `{}` is there with a capacity of {} and {} objects, not {} and "
                  "{}: give both sides the same options, or this one another `name`",
                  options_.name, memory::readable_bytes(there.capacity), there.max_objects,
                  memory::readable_bytes(wanted.capacity), wanted.max_objects));
}

Status Arena::take_row() {
  Header& header = map_.header();
  for (uint32_t member = 0; member < kMaxMembers; ++member) {
    Member& row = header.members[member];
    if (row.used.get() != 0 || !lock_member_byte(fd_.get(), member)) continue;
    const ProcessId self = ProcessId::self();
    row.pid.set(self.pid);
    row.start_time.set(self.start_time);
    row.pid_namespace.set(self.pid_namespace);
    pauses_.at(PausePoint::kJoinNamed);
    row.used.set(1);
    if (options_.keep) header.keep.set(1);
    pauses_.at(PausePoint::kJoined);
    views_.emplace(map_, member, pauses_);
    member_ = member;
    return {};
  }
  return Status(Reason::kLimit, fmt::format("arena `{}`: {} stores have it open already",
                                            options_.name, kMaxMembers));
}

}  // namespace stagelink::store::shm
