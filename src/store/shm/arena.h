#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "stagelink/result.h"
#include "stagelink/store_options.h"
#include "store/shm/arena_map.h"
#include "store/shm/object_table.h"
#include "store/shm/pause.h"
#include "store/shm/sync/robust_mutex.h"
#include "store/shm/sync/wait_word.h"
#include "store/shm/view_counts.h"

namespace stagelink::store::shm {

// A process's part in an arena: the mapping and one row among the members. It leaves when the last
// store, view and writer that hold it are gone; the last to leave removes the file.
//
// Thread-safety: all methods may run at the same time.
class Arena {
 public:
  // Joins the arena of that name, or makes it. Errors: as ObjectStore::open.
  static Result<std::shared_ptr<Arena>> open(const ArenaOptions& options, Pauses pauses = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The arena's lock, while this lives. What it gave back or sealed is told to sleepers at its end.
  //
  // Thread-safety: for the thread that locked.
  class Locked {
   public:
    Locked(Locked&& other) noexcept
        : arena_(std::exchange(other.arena_, nullptr)), key_(other.key_) {}
    Locked& operator=(Locked&&) = delete;
    ~Locked() {
      if (arena_ != nullptr) arena_->unlock(key_);
    }
    ObjectTable& objects() const noexcept { return arena_->objects_; }
    // Whoever waits for a key of this hash is woken at the end.
    void wake_key(uint64_t hash) noexcept { key_ = &arena_->key_word(hash); }

   private:
    friend class Arena;
    explicit Locked(Arena& arena) noexcept : arena_(&arena) {}
    Arena* arena_;
    std::atomic<uint32_t>* key_ = nullptr;
  };

  // Errors: timed_out, naming the holder; corrupt.
  Result<Locked> lock();
  // None: somebody holds it.
  std::optional<Locked> try_lock() noexcept;

  const ArenaMap& map() const noexcept { return map_; }
  const Pauses& pauses() const noexcept { return pauses_; }
  const std::string& path() const noexcept { return path_; }
  uint32_t member() const noexcept { return member_; }
  bool forked() const noexcept;
  bool holder_died() noexcept { return RobustMutex(map_.header().lock).holder_died(); }

  std::atomic<uint32_t>& key_word(uint64_t hash) const noexcept {
    return map_.header().wait_words[(hash >> 16) % kWaitWords];
  }
  std::atomic<uint32_t>& space_word() const noexcept { return map_.header().space_word; }
  // For close(): sleepers of all processes look again.
  void wake_everybody() noexcept;

  // True: the slot stays what its tag says until end_view().
  bool begin_view(uint32_t slot, Tag tag) noexcept;
  void end_view(uint32_t slot) noexcept;

  // Clears what dead members hold. True if there were any.
  bool sweep_dead(const Locked& locked);

 private:
  struct Mapped;
  Arena(const ArenaOptions& options, Mapped mapped, Pauses pauses);

  static Result<std::shared_ptr<Arena>> try_open(const ArenaOptions& options, Pauses pauses);
  static Result<std::shared_ptr<Arena>> make(const ArenaOptions& options, Pauses pauses);
  static Result<std::shared_ptr<Arena>> join(const ArenaOptions& options, UniqueFd fd,
                                             Pauses pauses);
  Status finish_making();
  Status enter_existing(const Locked& locked, LockAnswer answer);
  Status check_options() const;
  Status take_row();
  int32_t lock_holder() noexcept;
  Status repair();
  Status broken() const;
  void unlock(std::atomic<uint32_t>* key) noexcept;
  void leave() noexcept;
  bool is_dead(uint32_t member) const noexcept;
  uint32_t live_others() const noexcept;
  void reclaim(uint32_t slot) noexcept;

  const ArenaOptions options_;
  const std::string path_;
  const Pauses pauses_;
  const UniqueFd fd_;
  const std::span<std::byte> mapping_;
  const uint64_t fork_token_;
  ArenaMap map_;
  ObjectTable objects_;  // Used under the arena's lock.
  uint32_t member_ = kNone;
  std::optional<ViewCounts> views_;
};

}  // namespace stagelink::store::shm
