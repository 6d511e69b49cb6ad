#include "engine/batch/session_state.h"

#include <algorithm>
#include <utility>

#include "engine/batch/remote_regions.h"
#include "engine/core.h"
#include "engine/link/peer_state.h"

namespace stagelink::engine {

SessionState::SessionState(std::shared_ptr<PeerState> peer) noexcept : peer_(std::move(peer)) {}

namespace {

std::unique_ptr<SessionView> view_of_locals(
    const std::vector<std::shared_ptr<memory::RegionRecord>>& local) {
  auto view = std::make_unique<SessionView>();
  for (const auto& record : local) {
    view->locals.push_back({record, record->bytes.data(), record->bytes.size()});
  }
  return view;
}

bool uses_stream(const SessionView& view) {
  for (const RemoteRegion& remote : view.remotes) {
    if (remote.route.kind && transport::is_stream(*remote.route.kind)) return true;
  }
  return false;
}

}  // namespace

Result<std::shared_ptr<SessionState>> SessionState::create(
    std::shared_ptr<PeerState> peer, std::vector<std::shared_ptr<memory::RegionRecord>> local,
    std::span<const RegionDesc> remote) {
  const Deadline deadline = Deadline::in(peer->core().options().connect_timeout);
  auto view = view_of_locals(local);
  for (const RegionDesc& desc : remote) {
    auto region = resolve_remote(*peer, desc, deadline);
    if (!region.ok()) return region.status();
    view->remotes.push_back(*std::move(region));
  }
  if (uses_stream(*view)) {
    auto stream = peer->stream(0, deadline);
    if (!stream.ok()) return stream.status();
  }
  std::shared_ptr<SessionState> session(new SessionState(peer));
  session->adopt(std::move(view));
  peer->add_session(session);
  return session;
}

Result<std::shared_ptr<SessionState>> SessionState::create_by_address(
    std::shared_ptr<PeerState> peer, std::vector<std::shared_ptr<memory::RegionRecord>> local) {
  SL_TRY(peer->usable(/*needs_process=*/false));
  std::shared_ptr<SessionState> session(new SessionState(peer));
  auto view = view_of_locals(local);
  view->by_address = true;
  view->owner_resolves = peer->shared() == nullptr;
  session->adopt(std::move(view));
  if (peer->shared() != nullptr) SL_TRY(session->refresh());
  peer->add_session(session);
  return session;
}

Result<TransferState*> SessionState::submit(const RangeList& ranges, transport::Direction direction,
                                            Duration timeout) {
  const PlanLimits& limits = peer_->core().plan_limits();
  return submit_planned(direction, timeout, [&](const SessionView& view, Plan& plan) {
    return plan_ranges(view, ranges, direction, limits, plan);
  });
}

Result<TransferState*> SessionState::submit(const StridedRange& range,
                                            transport::Direction direction, Duration timeout) {
  const PlanLimits& limits = peer_->core().plan_limits();
  return submit_planned(direction, timeout, [&](const SessionView& view, Plan& plan) {
    return plan_strided(view, range, direction, limits, plan);
  });
}

template <typename PlanFn>
Result<TransferState*> SessionState::submit_planned(transport::Direction direction,
                                                    Duration timeout, PlanFn&& plan) {
  SL_TRY(peer_->core().usable());
  SL_TRY(peer_->usable(/*needs_process=*/false));
  auto taken = peer_->core().transfers().take();
  if (!taken.ok()) return taken.status();
  TransferState* const state = *taken;
  View current = view();
  Status status = plan(*current, state->plan());
  if (current->by_address && !current->owner_resolves && status.scope() == Scope::kRegion) {
    // The owner may have registered new memory since the table was read.
    status = refresh();
    current = view();
    if (status.ok()) status = plan(*current, state->plan());
  }
  if (status.ok()) status = set_off(*state, current, direction, timeout);
  if (status.ok()) return state;
  peer_->core().report("batch for peer " + peer_->name(), status);
  state->unref();
  return status;
}

Status SessionState::set_off(TransferState& state, const View& view, transport::Direction direction,
                             Duration timeout) {
  EngineCore& core = peer_->core();
  if (timeout == Duration::zero()) timeout = core.options().transfer_timeout;
  TransferState::Setup setup;
  setup.started = Deadline::Clock::now();
  setup.deadline = Deadline::after(setup.started, timeout);
  if (!state.plan().posted_items.empty()) {
    // Connected already, but for the first batch after a cut.
    auto stream = peer_->stream(
        state.plan().posted_bytes,
        Deadline::earlier(setup.deadline, Deadline::in(core.options().connect_timeout)));
    if (!stream.ok()) return stream.status();
    setup.poster = *std::move(stream);
  }
  setup.view = view;
  setup.direction = direction;
  state.prepare(std::move(setup));
  return state.start();
}

std::string SessionState::explain() const {
  const View current = view();
  std::string text;
  for (size_t i = 0; i < current->remotes.size(); ++i) {
    const RemoteRegion& remote = current->remotes[i];
    text += "region " + std::to_string(i) + " (" + std::to_string(remote.desc.bytes) + " bytes): ";
    if (remote.gone) {
      text += "gone: deregistered by its owner\n";
      continue;
    }
    text += remote.route.kind ? transport::transport_name(*remote.route.kind) : "none";
    text += ": " + remote.route.why + "\n";
  }
  return text;
}

SessionState::View SessionState::view() const {
  MutexLock lock(mutex_);
  return view_;
}

std::unique_ptr<SessionView> SessionState::copy_view() const {
  const View current = view();
  auto copy = std::make_unique<SessionView>();
  copy->by_address = current->by_address;
  copy->owner_resolves = current->owner_resolves;
  copy->locals = current->locals;
  copy->remotes = current->remotes;
  return copy;
}

void SessionState::adopt(std::unique_ptr<SessionView> next) {
  for (const RemoteRegion& remote : next->remotes) {
    next->posted_refs.push_back({remote.desc.index, remote.desc.generation});
    if (remote.route.kind == transport::TransportKind::kCma) next->cma = peer_->cma();
  }
  next->peer = peer_;
  next->copier = peer_->core().make_copier(*peer_, *next);
  if (next->by_address) next->index_addresses();
  View old = std::move(next);
  MutexLock lock(mutex_);
  view_.swap(old);
}

Status SessionState::refresh() {
  const Deadline deadline = Deadline::in(peer_->core().options().connect_timeout);
  auto next = copy_view();
  auto remotes = read_region_table(*peer_, next->remotes, deadline);
  if (!remotes.ok()) return remotes.status();
  next->remotes = *std::move(remotes);
  adopt(std::move(next));
  return Status();
}

void SessionState::drop_stale() {
  const View current = view();
  bool any = false;
  for (const RemoteRegion& remote : current->remotes) any = any || (!remote.gone && remote.stale());
  for (const LocalRegion& local : current->locals) any = any || local.retired();
  if (!any) return;
  auto next = copy_view();
  for (LocalRegion& local : next->locals) {
    if (local.retired()) local = LocalRegion{};
  }
  for (RemoteRegion& remote : next->remotes) {
    if (!remote.stale()) continue;
    remote.gone = true;
    remote.mapping.reset();
  }
  adopt(std::move(next));
}

void SessionState::drop_local(const memory::RegionRecord& record) {
  const View current = view();
  const auto is_it = [&](const LocalRegion& local) { return local.record.get() == &record; };
  if (std::none_of(current->locals.begin(), current->locals.end(), is_it)) return;
  auto next = copy_view();
  std::replace_if(next->locals.begin(), next->locals.end(), is_it, LocalRegion{});
  adopt(std::move(next));
}

void SessionState::drop_all() {
  auto next = copy_view();
  for (RemoteRegion& remote : next->remotes) {
    remote.gone = true;
    remote.mapping.reset();
  }
  adopt(std::move(next));
}

}  // namespace stagelink::engine
