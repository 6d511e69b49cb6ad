#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"
#include "store/yuanrong/channel/lane_pool.h"
#include "store/yuanrong/channel/protocol.h"
#include "store/yuanrong/channel/worker_options.h"

namespace stagelink::store::yuanrong {

// A segment of the worker (or a copy that the broker made), mapped here. Unmapped when the last
// object in it is let go.
struct MappedArena {
  std::span<std::byte> bytes;
  MappedArena() = default;
  MappedArena(const MappedArena&) = delete;
  MappedArena& operator=(const MappedArena&) = delete;
  ~MappedArena();
};

class Link;

// Memory of one object of the datasystem that the broker holds for this process until this goes.
// Empty: there is none.
//
// Thread-safety: a value; the bytes are shared.
class HeldMemory {
 public:
  HeldMemory() noexcept = default;
  HeldMemory(HeldMemory&& other) noexcept;
  HeldMemory& operator=(HeldMemory&& other) noexcept;
  ~HeldMemory();

  explicit operator bool() const noexcept { return link_ != nullptr; }
  std::span<std::byte> bytes() const noexcept { return bytes_; }
  uint64_t handle() const noexcept { return handle_; }
  const std::shared_ptr<Link>& link() const noexcept { return link_; }
  // The broker has let go of it by itself.
  void forget() noexcept;

 private:
  friend class Link;
  std::shared_ptr<Link> link_;
  std::shared_ptr<MappedArena> arena_;
  std::span<std::byte> bytes_;
  uint64_t handle_ = 0;
};

// What is asked of the broker.
struct LinkCall {
  Op op = Op::kGet;
  std::span<const std::string> keys;  // At most kMaxKeysPerRequest, each 1 to kMaxStoreKeyBytes.
  std::span<const std::byte> value;   // kSet.
  uint64_t size = 0;                  // kCreate.
  uint64_t handle = 0;                // kPublish.
  uint32_t wait_ms = 0;               // kGet.
  uint32_t ttl_s = 0;
  uint32_t write_mode = 0;
};

struct LinkAnswer {
  uint32_t code = 0;  // The datasystem's, or one of protocol.h; 0: well.
  std::string message;
  std::vector<HeldMemory> memory;  // One for each key of kGet and kCreate.
  std::vector<bool> found;         // One for each key of kGet and kExists.
};

// One process's connection to its broker. Broken for good when the broker goes: whatever waits ends
// at once, and what is held can no longer be trusted to stay.
//
// Thread-safety: all methods may run at the same time.
class Link : public std::enable_shared_from_this<Link> {
 public:
  // Says hello over a connected socket, and waits for the welcome. Errors: unreachable, permission
  // (authentication), peer_lost, timed_out.
  static Result<std::shared_ptr<Link>> open(UniqueFd socket, const WorkerOptions& options,
                                            const Deadline& deadline);
  ~Link();

  // Errors: unreachable (the worker is down), peer_lost (the broker has gone), timed_out,
  // invalid_state (closed, forked), corrupt (the broker answered nonsense).
  Result<LinkAnswer> call(const LinkCall& call, const Deadline& deadline);

  // Ends what waits, with `why`. What is held stays.
  void close(const Status& why);
  // Ok, or why the broker is not there any more.
  Status alive() const;
  bool forked() const noexcept;
  const Watch& watch() const noexcept { return page_->watch; }
  // Ok, or unreachable with what the broker saw of the worker.
  Status worker_state() const;
  // Ok, or unreachable (partition).
  Status ring_state() const;
  uint64_t held() const noexcept { return held_.load(); }

 private:
  friend class HeldMemory;
  Link(UniqueFd socket, std::span<std::byte> page, UniqueFd stop);

  Status welcome(const Deadline& deadline);
  void listen();  // The thread's.
  Status take_arena(std::span<const std::byte> bytes, UniqueFd fd);
  void fail(const Status& why);
  Status write_request(Lane& lane, const LinkCall& call);
  Status await(Lane& lane, const LinkCall& call, const Deadline& deadline);
  Result<LinkAnswer> read_reply(const Lane& lane, const LinkCall& call, const Deadline& deadline);
  Result<HeldMemory> hold(const Place& place, const Deadline& deadline);
  void release(uint64_t handle) noexcept;
  void wake_all() noexcept;
  Status ended() const;
  bool send(std::span<const std::byte> packet) noexcept;

  const uint64_t fork_token_;
  const UniqueFd socket_;
  const UniqueFd stop_;  // An eventfd: the thread is to end.
  const std::span<std::byte> mapping_;
  Page* const page_;
  LanePool lanes_;
  std::atomic<uint64_t> held_{0};
  std::atomic<bool> has_ended_{false};  // Mirrors ended_, for who only looks.

  mutable Mutex mutex_;
  CondVar arena_came_;
  std::map<uint64_t, std::shared_ptr<MappedArena>> arenas_ SL_GUARDED_BY(mutex_);
  Status ended_ SL_GUARDED_BY(mutex_);
  Status broken_ SL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace stagelink::store::yuanrong
