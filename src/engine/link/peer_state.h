#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "engine/link/notify_sender.h"
#include "engine/link/peer_link.h"
#include "engine/link/region_fetch.h"
#include "memory/segment.h"
#include "stagelink/peer.h"
#include "transport/frame_connection.h"
#include "transport/stream/striped_transport.h"
#include "transport/transport.h"

namespace stagelink::engine {

class EngineCore;
class SessionState;

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
  Status notify(Reason outcome, std::span<const std::byte> payload);
  // For notifications that follow a transfer: a full ring queues them, in order, up to a bound.
  void notify_later(Reason outcome, std::vector<std::byte> payload);

  const PeerLink& link() const noexcept { return link_; }
  // Null: the peer was reached over TCP, and shares nothing with us.
  SharedView* shared() const noexcept { return link_.shared.get(); }
  // What carries the stream to this peer: kStream, kTcp, or nothing that is enabled.
  std::optional<transport::TransportKind> stream_kind() const noexcept;
  // Threads of ours are in the middle of a copy.
  bool copies() const noexcept { return shared() != nullptr && !shared()->lanes().idle(); }
  // The process behind the peer; null if its memory cannot be copied with cma.
  const std::shared_ptr<transport::CmaOwner>& cma() const noexcept { return link_.cma; }
  // Ok, or why cma() is null. The first who asks in vain is what makes it a warning in the log.
  const Status& cma_status();
  const std::atomic<bool>& lost_flag() const noexcept { return lost_; }

  // The peer's shareable region, mapped here, shared by all sessions. Waits for the peer.
  Result<std::shared_ptr<memory::MappedSegment>> map_region(const RegionDesc& desc,
                                                            const Deadline& deadline)
      SL_EXCLUDES(maps_mutex_);
  // The stream to the peer's private memory, for a batch of so many bytes: as many data connections
  // as it needs, connected when they are first needed.
  Result<std::shared_ptr<transport::PostedTransport>> stream(uint64_t bytes,
                                                             const Deadline& deadline)
      SL_EXCLUDES(stream_mutex_);
  // One of its connections has ended: the next stream() connects anew.
  void drop_channel(const transport::PostedTransport& channel);

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
  std::unique_ptr<NotifyPort> make_notify_port();
  void send_notify_frames();
  Status take_region(uint64_t request_id, std::span<const std::byte> payload,
                     std::vector<UniqueFd>& fds);
  void forget_dead_maps() SL_EXCLUDES(maps_mutex_);

  const std::shared_ptr<EngineCore> core_;
  PeerLink link_;
  FrameNotifyPort* frame_port_ = nullptr;  // Over TCP: belongs to notices_.
  NotifySender notices_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<bool> handle_released_{false};
  std::atomic<bool> warned_of_cma_{false};
  mutable Mutex why_mutex_;
  Status why_lost_ SL_GUARDED_BY(why_mutex_);

  // Progress loop only.
  std::unique_ptr<transport::FrameConnection> control_;
  uint32_t missed_heartbeats_ = 0;
  bool said_bye_ = false;

  RegionFetches fetches_;

  Mutex maps_mutex_;
  std::map<std::pair<uint32_t, uint64_t>, std::weak_ptr<memory::MappedSegment>> maps_
      SL_GUARDED_BY(maps_mutex_);

  Mutex stream_mutex_;  // Held while connecting.
  const std::shared_ptr<transport::StripedTransport> stripes_;
  // As many connections as the peer has taken; looked at again when one is lost.
  std::atomic<uint32_t> most_stripes_;

  Mutex sessions_mutex_;
  std::vector<std::weak_ptr<SessionState>> sessions_ SL_GUARDED_BY(sessions_mutex_);
};

}  // namespace stagelink::engine
