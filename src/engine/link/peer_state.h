#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "engine/link/region_fetch.h"
#include "memory/segment.h"
#include "stagelink/peer.h"
#include "transport/frame_connection.h"
#include "transport/shm/access_lanes.h"
#include "transport/shm/notify_ring.h"
#include "transport/transport.h"
#include "wire/table_layout.h"

namespace stagelink::engine {

class EngineCore;
class SessionState;

// What the handshake gave us of a peer on this host.
struct PeerLink {
  InstanceId instance;
  std::string name;
  std::string socket_path;
  uint32_t pid = 0;
  uint32_t table_capacity = 0;
  uint32_t max_notification_bytes = 0;
  UniqueFd control;
  memory::SharedPages table;
  memory::SharedPages page;
  memory::SharedPages doorbell;
  UniqueFd bell;
};

// A connected peer: one life of one process.
//
// Thread-safety: all public methods may run at the same time, except where noted.
class PeerState final : public transport::FrameConnection::Owner,
                        public std::enable_shared_from_this<PeerState> {
 public:
  PeerState(std::shared_ptr<EngineCore> core, PeerLink link);
  PeerState(const PeerState&) = delete;
  PeerState& operator=(const PeerState&) = delete;
  ~PeerState();

  // Gives the control connection to the progress loop.
  Status attach(const Deadline& deadline);
  Status close();
  // The user's handle has gone: the peer ends when its last session and transfer have.
  void release_handle() noexcept;

  EngineCore& core() const noexcept { return *core_; }
  const std::shared_ptr<EngineCore>& core_ptr() const noexcept { return core_; }
  InstanceId instance() const noexcept { return link_.instance; }
  const std::string& name() const noexcept { return link_.name; }
  PeerPhase phase() const noexcept;
  // Ok, or why nothing new can be submitted. `needs_process`: unreachable while it is stopped.
  Status usable(bool needs_process) const;

  Status check_notification(size_t bytes) const;
  Status notify(Reason outcome, std::span<const std::byte> payload) SL_EXCLUDES(send_mutex_);
  // For notifications that follow a transfer: a full ring queues them, in order, up to a bound.
  void notify_later(Reason outcome, std::vector<std::byte> payload) SL_EXCLUDES(send_mutex_);

  const wire::TableHeader& table() const noexcept { return *link_.table.at<wire::TableHeader>(); }
  // Null if the index lies beyond the table.
  const wire::TableEntry* row(uint32_t index) const noexcept;
  uint32_t rows_used() const noexcept;
  transport::AccessLanes& lanes() noexcept { return lanes_; }
  const std::atomic<bool>& lost_flag() const noexcept { return lost_; }

  // The peer's shareable region, mapped here, shared by all sessions. Waits for the peer.
  Result<std::shared_ptr<memory::MappedSegment>> map_region(const RegionDesc& desc,
                                                            const Deadline& deadline)
      SL_EXCLUDES(maps_mutex_);
  // The stream to the peer's private memory; connected when first asked for.
  Result<std::shared_ptr<transport::PostedTransport>> stream(const Deadline& deadline)
      SL_EXCLUDES(stream_mutex_);

  // After its connection has ended: the next stream() connects anew.
  void drop_stream() SL_EXCLUDES(stream_mutex_);

  void add_session(const std::shared_ptr<SessionState>& session) SL_EXCLUDES(sessions_mutex_);
  std::vector<std::shared_ptr<SessionState>> sessions() SL_EXCLUDES(sessions_mutex_);

  // Progress loop only: heartbeat and housekeeping. True while it wants to be called soon.
  bool tick(bool heartbeat_due);
  // Progress loop only. Ends the connection of a lost peer once no thread of ours copies any more,
  // because the owner takes its end as the end of all our accesses. False: not yet.
  bool let_go(bool force);
  // Any thread: ends this peer; transfers end with `why`. Idempotent.
  void lose(const Status& why);

  Status on_frame(transport::FrameConnection& from, const wire::FrameHeader& header,
                  std::span<const std::byte> payload, std::vector<UniqueFd>& fds) override;
  void on_closed(transport::FrameConnection& connection, const Status& why) override;

 private:
  struct Backlogged {
    Reason outcome;
    std::vector<std::byte> payload;
  };
  void ring_doorbell() noexcept;
  bool flush_backlog() SL_REQUIRES(send_mutex_);
  void forget_dead_maps() SL_EXCLUDES(maps_mutex_);

  const std::shared_ptr<EngineCore> core_;
  PeerLink link_;
  transport::AccessLanes lanes_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<bool> handle_released_{false};
  mutable Mutex why_mutex_;
  Status why_lost_ SL_GUARDED_BY(why_mutex_);

  // Progress loop only.
  std::unique_ptr<transport::FrameConnection> control_;
  uint32_t missed_heartbeats_ = 0;
  bool said_bye_ = false;

  RegionFetches fetches_;

  Mutex send_mutex_;
  transport::NotifyProducer producer_ SL_GUARDED_BY(send_mutex_);
  std::deque<Backlogged> backlog_ SL_GUARDED_BY(send_mutex_);
  std::atomic<bool> backlog_waits_{false};

  Mutex maps_mutex_;
  std::map<std::pair<uint32_t, uint64_t>, std::weak_ptr<memory::MappedSegment>> maps_
      SL_GUARDED_BY(maps_mutex_);

  Mutex stream_mutex_;
  std::shared_ptr<transport::PostedTransport> stream_ SL_GUARDED_BY(stream_mutex_);

  Mutex sessions_mutex_;
  std::vector<std::weak_ptr<SessionState>> sessions_ SL_GUARDED_BY(sessions_mutex_);
};

}  // namespace stagelink::engine
