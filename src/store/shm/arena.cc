#include "store/shm/arena.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/process_id.h"
#include "base/text.h"
#include "memory/memfd.h"
#include "store/shm/arena_file.h"

namespace stagelink::store::shm {

bool Arena::forked() const noexcept { return ForkGuard::forked(fork_token_); }

Result<Arena::Locked> Arena::lock() {
  SL_TRY(broken());
  RobustMutex mutex(map_.header().lock);
  const LockAnswer answer = mutex.lock(Deadline::in(options_.lock_timeout));
  if (answer == LockAnswer::kTimedOut) {
    return Status(
        Reason::kTimedOut,
        fmt::format("arena `{}`: process {} has held its lock for {}; is it stopped?",
                    options_.name, lock_holder(), format_duration(options_.lock_timeout)));
  }
  if (answer == LockAnswer::kBroken) {
    return Status(Reason::kCorrupt,
                  fmt::format("{}: its lock cannot be used any more; remove the file when no "
                              "process uses it",
                              path_));
  }
  const int32_t holder = map_.header().lock_holder.get();
  map_.header().lock_holder.set(::getpid());
  Locked locked(*this);
  if (answer == LockAnswer::kHolderDied) {
    // From here on it is as if this process had died inside, should it die.
    mutex.mark_consistent();
    map_.damaged();
    log(LogLevel::kWarning, "store",
        fmt::format("arena `{}`: process {} died inside; its lists are made anew", options_.name,
                    holder));
  }
  if (map_.is_damaged()) SL_TRY(repair());
  return locked;
}

std::optional<Arena::Locked> Arena::try_lock() noexcept {
  RobustMutex mutex(map_.header().lock);
  switch (mutex.try_lock()) {
    case LockAnswer::kHeld: break;
    case LockAnswer::kHolderDied:
      mutex.mark_consistent();
      map_.damaged();
      break;
    case LockAnswer::kTimedOut:
    case LockAnswer::kBroken: return std::nullopt;
  }
  Locked locked(*this);
  map_.header().lock_holder.set(::getpid());
  if (map_.is_damaged() && !repair().ok()) return std::nullopt;
  return locked;
}

int32_t Arena::lock_holder() noexcept {
  // The number stands a moment after the lock is taken.
  const int32_t process = map_.header().lock_holder.get();
  return process != 0 ? process : RobustMutex(map_.header().lock).holder_thread();
}

// Under the lock.
Status Arena::repair() {
  (void)map_.take_damage();
  Header& header = map_.header();
  header.recoveries.set(header.recoveries.get() + 1);
  const Status status = objects_.rebuild();
  wake_everybody();  // Whoever died may have had something to say.
  if (status.ok()) return {};
  header.state.store(static_cast<uint32_t>(ArenaState::kBroken), std::memory_order_release);
  Status broken(Reason::kCorrupt, fmt::format("{}: {}", path_, status.message()));
  log_failure("store", broken);
  return broken;
}

Status Arena::broken() const {
  const uint32_t state = map_.header().state.load(std::memory_order_relaxed);
  if (state != static_cast<uint32_t>(ArenaState::kBroken)) return {};
  return Status(Reason::kCorrupt,
                fmt::format("{}: what it says contradicts itself; end the processes that use it "
                            "and remove the file",
                            path_));
}

void Arena::unlock(std::atomic<uint32_t>* key) noexcept {
  Header& header = map_.header();
  const bool wake_space = objects_.take_freed() && WaitWord(header.space_word).change();
  const bool wake_key = key != nullptr && WaitWord(*key).change();
  header.lock_holder.set(0);
  RobustMutex(header.lock).unlock();
  if (key != nullptr) pauses_.at(PausePoint::kSealUnlocked);
  if (wake_key) WaitWord(*key).wake();
  if (wake_space) WaitWord(header.space_word).wake();
}

void Arena::wake_everybody() noexcept {
  Header& header = map_.header();
  for (std::atomic<uint32_t>& word : header.wait_words) {
    if (WaitWord(word).change()) WaitWord(word).wake();
  }
  if (WaitWord(header.space_word).change()) WaitWord(header.space_word).wake();
}

bool Arena::begin_view(uint32_t slot, Tag tag) noexcept {
  pauses_.at(PausePoint::kViewFound);
  bool last = false;
  if (views_->enter(slot, tag, last)) {
    pauses_.at(PausePoint::kViewHeld);
    return true;
  }
  if (last) reclaim(slot);
  return false;
}

void Arena::end_view(uint32_t slot) noexcept {
  if (!views_->leave(slot)) return;
  pauses_.at(PausePoint::kViewLeft);
  reclaim(slot);
}

// The last view of this store has gone: if the object is retired, its memory may now be free. If
// the lock is taken, whoever holds it or waits for space finds out.
void Arena::reclaim(uint32_t slot) noexcept {
  // seq_cst, see ObjectTable::retire: it has seen the bit that is gone now, or this sees its tag.
  const Tag tag{map_.slot(slot).tag.load(std::memory_order_seq_cst)};
  if (tag.state() != SlotState::kRetired) return;
  if (auto locked = try_lock()) {
    (void)locked->objects().sweep_retired();
    return;
  }
  WaitWord space(map_.header().space_word);
  if (space.change()) space.wake();
}

bool Arena::is_dead(uint32_t member) const noexcept {
  const Member& row = map_.header().members[member];
  const ProcessId process{row.pid.get(), row.start_time.get(), row.pid_namespace.get()};
  if (liveness_of(process) == Liveness::kDead) return true;
  return !is_member_byte_locked(fd_.get(), member);
}

uint32_t Arena::live_others() const noexcept {
  uint32_t live = 0;
  for (uint32_t member = 0; member < kMaxMembers; ++member) {
    if (member != member_ && map_.header().members[member].used.get() != 0) ++live;
  }
  return live;
}

bool Arena::sweep_dead(const Locked& locked) {
  bool any = false;
  for (uint32_t member = 0; member < kMaxMembers; ++member) {
    const Member& row = map_.header().members[member];
    if (member == member_ || row.used.get() == 0 || !is_dead(member)) continue;
    log(LogLevel::kWarning, "store",
        fmt::format("arena `{}`: process {} died; what it held is given back", options_.name,
                    row.pid.get()));
    locked.objects().clear_member(member);
    any = true;
  }
  return any;
}

Arena::~Arena() {
  if (!forked() && member_ != kNone) leave();
  memory::unmap(mapping_);
}

void Arena::leave() noexcept {
  auto locked = lock();
  if (!locked.ok()) {
    // Our row stays in use until this process has ended and somebody notices.
    log_failure("store", locked.status());
    return;
  }
  Header& header = map_.header();
  (void)sweep_dead(*locked);
  header.members[member_].used.set(0);
  unlock_member_byte(fd_.get(), member_);
  if (live_others() != 0 || header.keep.get() != 0) return;
  header.state.store(static_cast<uint32_t>(ArenaState::kRemoved), std::memory_order_release);
  pauses_.at(PausePoint::kLeaving);
  unlink_arena_file(fd_.get(), path_);
  pauses_.at(PausePoint::kUnlinked);
}

}  // namespace stagelink::store::shm
