#include "engine/link/peer_state.h"

#include <utility>

#include "base/log.h"
#include "engine/batch/session_state.h"
#include "engine/core.h"
#include "engine/link/dial.h"
#include "wire/batch_header.h"
#include "wire/hello.h"

namespace stagelink::engine {

PeerState::PeerState(std::shared_ptr<EngineCore> core, PeerLink link)
    : core_(std::move(core)),
      link_(std::move(link)),
      notices_(*core_, link_.name, make_notify_port()),
      stripes_(std::make_shared<transport::StripedTransport>(core_->options().stripe_min_bytes)),
      most_stripes_(core_->options().stream_stripes) {
  core_->metrics().add(metrics::Gauge::kPeers, 1);
}

std::unique_ptr<NotifyPort> PeerState::make_notify_port() {
  if (shared() != nullptr) return std::make_unique<RingNotifyPort>(*shared());
  auto port = std::make_unique<FrameNotifyPort>(link_.notify_window, [this] {
    core_->loop().run([self = shared_from_this()] { self->send_notify_frames(); });
  });
  frame_port_ = port.get();
  return port;
}

PeerState::~PeerState() { core_->metrics().add(metrics::Gauge::kPeers, -1); }

Status PeerState::attach(const Deadline& deadline) {
  return core_->call_on_loop(
      [self = shared_from_this()]() -> Status {
        auto control = transport::FrameConnection::create(self->core_->loop().poller(),
                                                          std::move(self->link_.control), *self);
        if (!control.ok()) return control.status();
        if (self->link_.checked) (*control)->check_frames();
        SL_TRY(self->core_->add_peer(self));
        self->control_ = *std::move(control);
        return Status();
      },
      deadline);
}

Status PeerState::close() {
  lose(Status(Reason::kClosed, "the peer was closed here"));
  return Status();
}

void PeerState::release_handle() noexcept { handle_released_.store(true); }

PeerPhase PeerState::phase() const noexcept {
  if (lost_.load()) return PeerPhase::kLost;
  return stopped_.load() ? PeerPhase::kUnreachable : PeerPhase::kConnected;
}

Status PeerState::usable(bool needs_process) const {
  if (lost_.load()) {
    MutexLock lock(why_mutex_);
    return why_lost_;
  }
  if (needs_process && stopped_.load()) {
    return Status(Reason::kStopped, "peer " + link_.name + " (pid " + std::to_string(link_.pid) +
                                        ") has not answered heartbeats; it may be stopped");
  }
  return Status();
}

std::optional<transport::TransportKind> PeerState::stream_kind() const noexcept {
  using transport::TransportKind;
  if (shared() != nullptr && core_->enabled(TransportKind::kStream)) return TransportKind::kStream;
  if (!link_.addresses.empty() && core_->enabled(TransportKind::kTcp)) return TransportKind::kTcp;
  return std::nullopt;
}

const Status& PeerState::cma_status() {
  if (!link_.why_no_cma.ok() && !warned_of_cma_.exchange(true)) {
    log(LogLevel::kWarning, "peer " + link_.name,
        "cma cannot be used: " + link_.why_no_cma.to_string());
  }
  return link_.why_no_cma;
}

Status PeerState::check_notification(size_t bytes) const {
  if (bytes > link_.max_notification_bytes) {
    return Status(Reason::kTooLarge, "notification of " + std::to_string(bytes) + " bytes; peer " +
                                         link_.name + " takes at most " +
                                         std::to_string(link_.max_notification_bytes));
  }
  return Status();
}

Status PeerState::notify(Reason outcome, std::span<const std::byte> payload) {
  SL_TRY(check_notification(payload.size()));
  SL_TRY(usable(/*needs_process=*/true));
  return notices_.send(outcome, payload);
}

void PeerState::notify_later(Reason outcome, std::vector<std::byte> payload) {
  if (lost_.load()) return;
  if (!notices_.send_later(outcome, std::move(payload))) core_->attend(shared_from_this());
}

// Progress loop only.
void PeerState::send_notify_frames() {
  for (const auto& record : frame_port_->take()) {
    if (control_ == nullptr) return;  // Lost: nobody takes them any more.
    // The window is far below what a connection queues, so this fails with the connection only.
    if (!control_->send(wire::FrameType::kNotify, 0, record).ok()) return;
  }
}

Result<std::shared_ptr<memory::MappedSegment>> PeerState::map_region(const RegionDesc& desc,
                                                                     const Deadline& deadline) {
  const std::pair key(desc.index, desc.generation);
  {
    MutexLock lock(maps_mutex_);
    if (auto known = maps_[key].lock()) return known;
  }
  SL_TRY(usable(/*needs_process=*/false));
  const uint64_t id = fetches_.open();
  core_->loop().run([self = shared_from_this(), id, ref = wire::RegionRef{key.first, key.second}] {
    if (self->control_ == nullptr) return;  // on_closed has answered.
    const Status sent = self->control_->send(wire::FrameType::kGetRegion, id, wire::encode(ref));
    if (!sent.ok()) self->fetches_.answer(id, sent);
  });
  auto fd = fetches_.wait(id, deadline);
  if (!fd.ok()) return fd.status();
  auto mapped = memory::MappedSegment::map(*fd, desc);
  if (!mapped.ok()) return mapped.status();
  const auto bytes = static_cast<int64_t>(mapped->bytes().size());
  const std::shared_ptr<memory::MappedSegment> segment(
      new memory::MappedSegment(*std::move(mapped)),
      [core = core_, bytes](memory::MappedSegment* gone) {
        delete gone;
        core->metrics().add(metrics::Gauge::kMappedBytes, -bytes);
      });
  core_->metrics().add(metrics::Gauge::kMappedBytes, bytes);
  MutexLock lock(maps_mutex_);
  auto& slot = maps_[key];
  if (auto known = slot.lock()) return known;  // Another thread was faster.
  slot = segment;
  return segment;
}

Result<std::shared_ptr<transport::PostedTransport>> PeerState::stream(uint64_t bytes,
                                                                      const Deadline& deadline) {
  SL_TRY(usable(/*needs_process=*/true));
  const bool striped = bytes >= core_->options().stripe_min_bytes;
  const auto enough = [&] { return stripes_->channels() >= (striped ? most_stripes_.load() : 1U); };
  if (enough()) return std::shared_ptr<transport::PostedTransport>(stripes_);
  MutexLock lock(stream_mutex_);
  while (!enough()) {
    auto opened = dial_stream(shared_from_this(), deadline);
    if (opened.ok()) {
      stripes_->add(*std::move(opened));
      continue;
    }
    const auto open = static_cast<uint32_t>(stripes_->channels());
    if (open == 0) return opened.status();
    // What there is will do, until one of them is lost.
    most_stripes_.store(open);
    core_->report("another data connection to peer " + link_.name, opened.status());
  }
  return std::shared_ptr<transport::PostedTransport>(stripes_);
}

void PeerState::drop_channel(const transport::PostedTransport& channel) {
  most_stripes_.store(core_->options().stream_stripes);
  stripes_->remove(channel);
}

void PeerState::add_session(const std::shared_ptr<SessionState>& session) {
  MutexLock lock(sessions_mutex_);
  std::erase_if(sessions_, [](const auto& weak) { return weak.expired(); });
  sessions_.push_back(session);
}

std::vector<std::shared_ptr<SessionState>> PeerState::sessions() {
  MutexLock lock(sessions_mutex_);
  std::vector<std::shared_ptr<SessionState>> live;
  for (const auto& weak : sessions_) {
    if (auto session = weak.lock()) live.push_back(std::move(session));
  }
  return live;
}

bool PeerState::tick(bool heartbeat_due) {
  if (lost_.load()) return !let_go(/*force=*/false);
  // Held by the engine's list and by the caller of tick() only: nobody can use it any more.
  if (handle_released_.load() && weak_from_this().use_count() <= 2) {
    lose(Status(Reason::kClosed, "the peer is no longer used here"));
    return false;
  }
  if (notices_.waits()) notices_.flush();
  if (heartbeat_due && control_ != nullptr) {
    if (++missed_heartbeats_ > core_->options().heartbeat_misses && !stopped_.exchange(true)) {
      core_->report("heartbeat", usable(/*needs_process=*/true));
    }
    // Pings are tiny, and none is sent while earlier ones wait in a stopped peer's socket.
    if (control_->drained()) (void)control_->send(wire::FrameType::kPing, 0, {});
    for (const auto& session : sessions()) session->drop_stale();
    forget_dead_maps();
  }
  return notices_.waits();
}

void PeerState::forget_dead_maps() {
  MutexLock lock(maps_mutex_);
  std::erase_if(maps_, [](const auto& entry) { return entry.second.expired(); });
}

void PeerState::lose(const Status& why) {
  {
    MutexLock lock(why_mutex_);
    if (lost_.load()) return;
    why_lost_ = why;
    lost_.store(true);
  }
  fetches_.fail_all(why);
  core_->end_transfers_of(*this, why);
  for (const auto& session : sessions()) session->drop_all();
  stripes_->remove_all();
  core_->loop().run([self = shared_from_this()] {
    if (!self->let_go(/*force=*/false)) self->core_->attend(self);
  });
}

bool PeerState::let_go(bool force) {
  // Sequentially consistent, after lost_ was set: see GuardedRows::inside().
  if (!force && shared() != nullptr && !shared()->lanes().idle()) {
    return false;
  }
  control_.reset();
  core_->remove_peer(*this);
  return true;
}

Status PeerState::on_frame(transport::FrameConnection& from, const wire::FrameHeader& header,
                           std::span<const std::byte> payload, std::vector<UniqueFd>& fds) {
  missed_heartbeats_ = 0;
  stopped_.store(false);
  switch (header.type) {
    case wire::FrameType::kPing: return from.send(wire::FrameType::kPong, header.request_id, {});
    case wire::FrameType::kPong: return Status();
    case wire::FrameType::kBye:
      said_bye_ = true;
      return Status(Reason::kPeerLost, "peer " + link_.name + " has closed its engine");
    case wire::FrameType::kRegion: return take_region(header.request_id, payload, fds);
    case wire::FrameType::kNotifyAck:
      if (frame_port_ == nullptr) break;
      SL_TRY(frame_port_->on_ack(payload));
      if (notices_.waits()) notices_.flush();
      return Status();
    default: break;
  }
  return Status(Reason::kFrame, "unexpected frame type " +
                                    std::to_string(static_cast<unsigned>(header.type)) +
                                    " from an owner");
}

Status PeerState::take_region(uint64_t request_id, std::span<const std::byte> payload,
                              std::vector<UniqueFd>& fds) {
  auto outcome = wire::decode_outcome(payload);
  if (!outcome.ok()) return outcome.status();
  if (outcome->reason != Reason::kOk) {
    fetches_.answer(request_id, Status(outcome->reason, outcome->message));
  } else if (fds.size() != 1) {
    return Status(Reason::kFrame, "region answer without exactly one fd");
  } else {
    fetches_.answer(request_id, std::move(fds.front()));
  }
  return Status();
}

void PeerState::on_closed(transport::FrameConnection&, const Status& why) {
  const Status lost =
      why.ok() ? Status(Reason::kPeerLost,
                        "peer " + link_.name + " (pid " + std::to_string(link_.pid) + ") has ended")
               : Status(why.code() == Code::kPeerLost ? why.reason() : Reason::kConnectionCut,
                        "peer " + link_.name + ": " + std::string(why.message()));
  if (!lost_.load()) {
    core_->metrics().add(metrics::Counter::kPeersLost);
    if (said_bye_) {
      log(LogLevel::kInfo, "peer", std::string(lost.message()));
    } else {
      // Transfers end as cut; the one count and line tell what it was.
      const bool damaged = why.reason() == Reason::kChecksum;
      core_->report("peer", damaged ? Status(why.reason(), std::string(lost.message())) : lost);
    }
  }
  lose(lost);
}

}  // namespace stagelink::engine
