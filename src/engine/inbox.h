#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "memory/segment.h"
#include "stagelink/notification.h"
#include "transport/shm/notify_ring.h"

namespace stagelink::engine {

// One peer's ring, as its reader sees it. Outlives the connection until it has been drained.
class InboundRing {
 public:
  InboundRing(InstanceId source, std::string source_name, memory::SharedPages page) noexcept;

  wire::PeerPage& page() noexcept { return *page_.at<wire::PeerPage>(); }
  int page_fd() const noexcept { return page_.fd(); }
  void close_page_fd() noexcept { page_.close_fd(); }
  InstanceId source() const noexcept { return source_; }
  const std::string& source_name() const noexcept { return source_name_; }

  // Used by the inbox under its lock.
  bool empty() const noexcept { return spoilt_ || consumer_.empty(); }
  // Fails once, when the peer is found to have broken its ring.
  Status drain(size_t max, std::vector<Notification>& out);
  // Called by drain() when it has taken something, under the inbox's lock: short, and with the
  // number of messages. Set before the ring is added to the inbox.
  std::function<void(uint64_t)> on_taken;
  // Set when the connection has ended: drained once more, then dropped.
  std::atomic<bool> departed{false};
  bool spoilt() const noexcept { return spoilt_; }

 private:
  const InstanceId source_;
  const std::string source_name_;
  memory::SharedPages page_;
  transport::NotifyConsumer consumer_;
  bool spoilt_ = false;  // The peer broke its ring; it is not read again.
};

// All rings of an engine, and its sleep: a futex in the doorbell page for threads that wait, an
// eventfd for event loops. Senders make a system call only if the doorbell is armed.
//
// Thread-safety: all methods may run at the same time.
class Inbox {
 public:
  // Told of every failure, by any thread and under the inbox's lock: what, and why.
  using Report = std::function<void(const std::string& what, const Status& why)>;

  static Result<std::unique_ptr<Inbox>> create(Report report);

  void add(std::shared_ptr<InboundRing> ring) SL_EXCLUDES(mutex_);
  // Rings of peers that still are connected; for the scan of access lanes.
  std::vector<std::shared_ptr<InboundRing>> rings() const SL_EXCLUDES(mutex_);
  size_t size() const SL_EXCLUDES(mutex_);

  std::vector<Notification> take(size_t max, const Deadline& deadline) SL_EXCLUDES(mutex_);
  // From now on the doorbell stays armed, so that the fd tells of every arrival. -1 after
  // close_fds().
  int arm_fileno() SL_EXCLUDES(mutex_);
  // Something was put into a ring that no peer can ring for.
  void arrived() noexcept;
  // Called by the engine's timer: drops drained rings of departed peers, and rings the bell if a
  // peer has silenced it.
  void tick() SL_EXCLUDES(mutex_);
  // Wakes all sleepers for good.
  void close() noexcept;
  // After close(), when no peer asks for the fds any more. What arm_fileno() gave stays open, and
  // readable, until the inbox goes: an event loop may be waiting for it.
  void close_fds() SL_EXCLUDES(mutex_);

  int doorbell_fd() const noexcept { return doorbell_.fd(); }
  int event_fd() const noexcept { return event_.get(); }

 private:
  Inbox(memory::SharedPages doorbell, UniqueFd event, Report report) noexcept;
  size_t drain(size_t max, std::vector<Notification>& out) SL_EXCLUDES(mutex_);
  void sleep(const Deadline& deadline) noexcept;
  void clear_event() noexcept;
  void ring_bell() noexcept;
  std::atomic<uint32_t>& armed() const noexcept { return doorbell_.at<wire::Doorbell>()->armed; }

  const Report report_;
  memory::SharedPages doorbell_;
  UniqueFd event_;  // Looked at in fileno mode only; given back by close_fds() in the other.
  std::atomic<bool> fileno_mode_{false};
  std::atomic<bool> closed_{false};
  std::atomic<uint32_t> sleepers_{0};
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<InboundRing>> rings_ SL_GUARDED_BY(mutex_);
  size_t next_ring_ SL_GUARDED_BY(mutex_) = 0;  // Where the next drain starts, for fairness.
  bool fds_closed_ SL_GUARDED_BY(mutex_) = false;
};

}  // namespace stagelink::engine
