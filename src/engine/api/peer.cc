#include "stagelink/peer.h"

#include <utility>

#include "base/fork_guard.h"
#include "engine/batch/session_state.h"
#include "engine/core.h"
#include "engine/link/peer_state.h"
#include "engine/region_handle.h"

namespace stagelink {
namespace {

Result<std::vector<std::shared_ptr<memory::RegionRecord>>> records_of(
    const engine::EngineCore& core,
    const std::vector<std::shared_ptr<engine::RegionHandle>>& local) {
  std::vector<std::shared_ptr<memory::RegionRecord>> records;
  for (size_t i = 0; i < local.size(); ++i) {
    auto record = local[i]->record();
    if (record == nullptr) {
      return Status(Reason::kNotRegistered,
                    "local region " + std::to_string(i) + " has been deregistered");
    }
    if (&local[i]->core() != &core) {
      return Status(Reason::kInvalidArgument,
                    "local region " + std::to_string(i) + " belongs to another engine");
    }
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace

Peer::Peer(std::shared_ptr<engine::PeerState> state) noexcept : state_(std::move(state)) {}
Peer::Peer(Peer&&) noexcept = default;

Peer& Peer::operator=(Peer&& other) noexcept {
  Peer old(std::move(other));
  state_.swap(old.state_);
  return *this;
}

Peer::~Peer() {
  if (state_ == nullptr) return;
  if (ForkGuard::forked(state_->core().fork_token())) {
    new std::shared_ptr<engine::PeerState>(std::move(state_));  // The parent's; left as it is.
    return;
  }
  const std::shared_ptr<engine::EngineCore> core = state_->core_ptr();
  state_->release_handle();
  core->attend(std::move(state_));
}

InstanceId Peer::instance() const noexcept { return state_->instance(); }
const std::string& Peer::name() const noexcept { return state_->name(); }
PeerPhase Peer::phase() const noexcept { return state_->phase(); }

Result<Session> Peer::session(std::span<const Region* const> local,
                              std::span<const RegionDesc> remote) {
  return open_session(local, [&](auto records) {
    return engine::SessionState::create(state_, std::move(records), remote);
  });
}

Result<Session> Peer::session_by_address(std::span<const Region* const> local) {
  return open_session(local, [&](auto records) {
    return engine::SessionState::create_by_address(state_, std::move(records));
  });
}

template <typename Create>
Result<Session> Peer::open_session(std::span<const Region* const> local, Create&& create) {
  SL_TRY(state_->core().usable());
  std::vector<std::shared_ptr<engine::RegionHandle>> handles;
  for (const Region* region : local) handles.push_back(region->handle_);
  auto records = records_of(state_->core(), handles);
  if (!records.ok()) return records.status();
  auto session = create(*std::move(records));
  if (!session.ok()) {
    state_->core().report("session with peer " + state_->name(), session.status());
    return session.status();
  }
  return Session(*std::move(session));
}

Status Peer::notify(std::span<const std::byte> payload) {
  SL_TRY(state_->core().usable());
  const Status status = state_->notify(Reason::kOk, payload);
  if (!status.ok()) state_->core().metrics().fail(status.reason());
  return status;
}

Status Peer::notify(std::span<const std::byte> payload, const Transfer& after) {
  SL_TRY(state_->core().usable());
  Status status = state_->check_notification(payload.size());
  if (status.ok()) {
    status = after.state_->notify_after(state_, {payload.begin(), payload.end()});
  }
  if (!status.ok()) state_->core().metrics().fail(status.reason());
  return status;
}

Status Peer::close() {
  SL_TRY(state_->core().usable());
  return state_->close();
}

}  // namespace stagelink
