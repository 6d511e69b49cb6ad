#include "cli/replay/coordinator.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>

#include "base/text.h"
#include "cli/replay/interrupt.h"
#include "cli/replay/rank_process.h"

namespace stagelink::cli::replay {
namespace {

using Json = nlohmann::json;

constexpr auto kStopTimeout = std::chrono::seconds(10);
constexpr auto kLongestTurn = std::chrono::milliseconds(100);
constexpr size_t kMostLines = 100;  // Of notes, and of failures.
constexpr auto kPingInterval = std::chrono::seconds(1);
// Beyond the time that a rank may wait for a transfer: it may have to fill or check a large
// request.
constexpr auto kSilence = std::chrono::seconds(20);

}  // namespace

Coordinator::Coordinator(const RunPlan& plan, RankStarter& prefill)
    : plan_(plan), prefill_(prefill) {
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    const uint32_t ranks =
        role == Role::kPrefill ? plan.base.prefill_ranks : plan.base.decode_ranks;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      Slot& slot = slots_.emplace_back();
      slot.config = plan.base;
      slot.config.role = role;
      slot.config.rank = rank;
    }
  }
  record_.requests.resize(plan.workload.requests.size());
  for (uint32_t request = 0; request < record_.requests.size(); ++request) {
    slots_[plan.base.prefill_ranks + plan.decode_rank_of(request)].queued.push_back(request);
  }
}

Result<RunRecord> Coordinator::run(Progress& progress) {
  SL_ASSIGN(const auto options, plan_.base.engine_options());
  runtime_dir_ = options.runtime_dir;
  const InterruptGuard guard;
  const Status started = start_all();
  if (started.ok() && !InterruptGuard::interrupted()) serve(progress);
  progress.clear();
  stop_all();
  remove_traces(runtime_dir_);
  if (!started.ok()) return started;
  record_.interrupted = InterruptGuard::interrupted();
  return std::move(record_);
}

Status Coordinator::start_all() {
  for (Slot& slot : slots_) SL_TRY(start(slot));
  return wait_ready();
}

Status Coordinator::start(Slot& slot) {
  RankStarter& starter = slot.is_decode() ? decode_ : prefill_;
  SL_ASSIGN(slot.process, starter.start(slot.config));
  slot.ready = false;
  slot.last_heard = Clock::now();
  return {};
}

Status Coordinator::wait_ready() {
  while (!std::ranges::all_of(slots_, &Slot::ready)) {
    turn(std::min<Duration>(kLongestTurn, plan_.ready_timeout));
    watch();
    if (!record_.failures.empty()) return Status(Reason::kPeerLost, record_.failures.front());
    if (InterruptGuard::interrupted()) return {};
  }
  return {};
}

void Coordinator::serve(Progress& progress) {
  begun_ = Clock::now();
  uint64_t moved = 0;
  size_t counted = 0;
  while (!finished() && !aborted_ && !InterruptGuard::interrupted()) {
    hand_out();
    turn(until_due());
    watch();
    for (; counted < record_.transfers.size(); ++counted) moved += record_.transfers[counted].bytes;
    const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    progress.show(
        record_.count(RequestRecord::State::kDone), record_.requests.size(),
        fmt::format("{:.2f} GiB  {:.0f} s", static_cast<double>(moved) / (1 << 30), seconds));
  }
  record_.wall = Clock::now() - begun_;
}

bool Coordinator::finished() const { return record_.count(RequestRecord::State::kOpen) == 0; }

void Coordinator::turn(Duration patience) {
  std::vector<pollfd> fds;
  fds.reserve(slots_.size());
  for (const Slot& slot : slots_) {
    const int fd = slot.process ? slot.process->fd() : -1;
    const bool writes = slot.process && slot.process->wants_write();
    fds.push_back({fd, static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
  }
  ::poll(fds.data(), fds.size(), Deadline::in(patience).left_ms());
  for (Slot& slot : slots_) {
    if (slot.process) take_events(slot);
  }
}

void Coordinator::take_events(Slot& slot) {
  slot.process->pump();
  for (;;) {
    auto event = slot.process->next();
    if (!event.ok()) {
      fail(fmt::format("{}: {}", slot.process->name(), event.status().message()));
      slot.process->kill();
      break;
    }
    if (!*event) break;
    slot.last_heard = Clock::now();
    try {
      take(slot, **event);
    } catch (const std::exception& error) {  // nlohmann's, or a number out of range.
      fail(fmt::format("{}: malformed event: {}", slot.process->name(), error.what()));
    }
  }
  if (slot.process->ended()) on_end(slot);
}

void Coordinator::take(Slot& slot, const Json& event) {
  if (record_.take(event)) {
    if (event.at("event") == "done" || event.at("event") == "lost") {
      std::erase(slot.open, event.at("request").get<uint32_t>());
    }
  } else if (event.at("event") == "ready") {
    on_ready(slot, event);
  } else if (event.at("event") == "failed") {
    const auto what =
        fmt::format("{}: {}", slot.process->name(), event.at("message").get<std::string>());
    slot.failed_to_start = !slot.ready;
    if (slot.ready) {
      note(what);
    } else {
      fail(what);
    }
  } else if (event.at("event") == "stopped") {
    record_.evicted_blocks += slot.is_decode() ? event.at("evicted_blocks").get<uint64_t>() : 0;
  }
}

void Coordinator::on_ready(Slot& slot, const Json& event) {
  slot.ready = true;
  slot.descriptor = event.at("descriptor").get<std::string>();
  for (Slot& other : slots_) {
    if (!other.ready || other.is_decode() == slot.is_decode()) continue;
    if (slot.is_decode()) {
      introduce(other, slot);
    } else {
      introduce(slot, other);
    }
  }
}

void Coordinator::introduce(const Slot& prefill, Slot& decode) {
  decode.process->send(
      {{"event", "peer"}, {"rank", prefill.config.rank}, {"descriptor", prefill.descriptor}});
}

void Coordinator::on_end(Slot& slot) {
  const std::string name = slot.process->name();
  const std::string ending = slot.process->reap(Deadline::in(kStopTimeout));
  const bool ended_well = slot.process->ended_well();
  slot.process.reset();
  slot.ready = false;
  if (stopping_) {
    if (!ended_well) fail(fmt::format("{} {}", name, ending));
    return;
  }
  bury(slot);
  // One that could not even start will not do so the next time.
  if (slot.restarts >= plan_.base.retries || slot.failed_to_start) {
    fail(fmt::format("{} {}, and is not started again", name, ending));
    aborted_ = true;
    return;
  }
  note(fmt::format("{} {}, and was started again", name, ending));
  restart(slot);
}

// Tells the others, and takes back the requests of a dead rank.
void Coordinator::bury(Slot& slot) {
  record_.errors[std::string(reason_name(Reason::kPeerLost))] += 1;
  remove_traces(runtime_dir_);
  if (!slot.is_decode()) return;
  announce_gone(slot);
  while (!slot.open.empty()) {
    slot.queued.push_front(slot.open.back());
    slot.open.pop_back();
  }
}

void Coordinator::announce_gone(const Slot& decode) {
  for (Slot& other : slots_) {
    if (other.is_decode() || !other.process) continue;
    other.process->send({{"event", "peer_gone"}, {"rank", decode.config.rank}});
  }
}

void Coordinator::restart(Slot& slot) {
  ++slot.restarts;
  ++record_.restarts;
  if (const Status started = start(slot); !started.ok()) {
    fail(started.to_string());
    aborted_ = true;
  }
}

// Asks every rank for a sign of life, and ends those that have given none for too long.
void Coordinator::watch() {
  const auto now = Clock::now();
  end_late_starters(now);
  if (now < next_ping_) return;
  next_ping_ = now + kPingInterval;
  for (Slot& slot : slots_) {
    if (!slot.process || !slot.ready) continue;
    const auto silent = now - slot.last_heard;
    if (silent > plan_.base.timeout + kSilence) {
      note(fmt::format("{} has been silent for {} s", slot.process->name(),
                       silent / std::chrono::seconds(1)));
      slot.process->kill();
    } else {
      slot.process->send({{"event", "ping"}});
    }
  }
}

// One that does not come up in time would not do so the next time.
void Coordinator::end_late_starters(Clock::time_point now) {
  for (Slot& slot : slots_) {
    if (!slot.process || slot.ready || slot.failed_to_start) continue;
    if (now - slot.last_heard <= plan_.ready_timeout) continue;
    fail(fmt::format("{} was not ready within {} (--ready-timeout)", slot.process->name(),
                     format_duration(plan_.ready_timeout)));
    slot.failed_to_start = true;
    slot.process->kill();
  }
}

void Coordinator::hand_out() {
  for (Slot& slot : slots_) {
    while (slot.ready && !slot.queued.empty() && slot.open.size() < plan_.in_flight &&
           due_at(slot.queued.front()) <= Clock::now()) {
      const uint32_t index = slot.queued.front();
      slot.queued.pop_front();
      slot.open.push_back(index);
      const TraceRequest& request = plan_.workload.requests[index];
      slot.process->send({{"event", "request"},
                          {"request", index},
                          {"prefill_rank", plan_.prefill_rank_of(index)},
                          {"tokens", request.input_tokens},
                          {"ids", request.hash_ids}});
    }
  }
}

// In a closed loop every request is due at once.
Coordinator::Clock::time_point Coordinator::due_at(uint32_t request) const {
  if (plan_.options.rate <= 0) return begun_;
  const auto& requests = plan_.workload.requests;
  const uint64_t first = requests.front().timestamp_ms;
  const uint64_t now = std::max(requests[request].timestamp_ms, first);
  const std::chrono::duration<double, std::milli> offset(static_cast<double>(now - first) /
                                                         plan_.options.rate);
  return begun_ + std::chrono::duration_cast<Clock::duration>(offset);
}

Duration Coordinator::until_due() const {
  Duration shortest = kLongestTurn;
  for (const Slot& slot : slots_) {
    if (!slot.ready || slot.queued.empty() || slot.open.size() >= plan_.in_flight) continue;
    shortest = std::min<Duration>(shortest, due_at(slot.queued.front()) - Clock::now());
  }
  return shortest;
}

void Coordinator::stop_all() {
  stopping_ = true;
  // Decode first, and prefill knows before, so that no one misses a peer.
  for (const Slot& slot : slots_) {
    if (slot.is_decode()) announce_gone(slot);
  }
  stop(Role::kDecode);
  stop(Role::kPrefill);
}

void Coordinator::stop(Role role) {
  const Deadline deadline = Deadline::in(kStopTimeout);
  const auto runs = [role](const Slot& slot) { return slot.process && slot.config.role == role; };
  for (Slot& slot : slots_) {
    if (runs(slot)) slot.process->send({{"event", "stop"}});
  }
  while (std::ranges::any_of(slots_, runs) && !deadline.passed()) turn(kLongestTurn);
  for (Slot& slot : slots_) {
    if (!runs(slot)) continue;
    slot.process->kill();
    on_end(slot);
  }
}

void Coordinator::fail(std::string what) {
  if (record_.failures.size() < kMostLines) record_.failures.push_back(std::move(what));
}

void Coordinator::note(std::string what) {
  if (record_.notes.size() < kMostLines) record_.notes.push_back(std::move(what));
}

}  // namespace stagelink::cli::replay
