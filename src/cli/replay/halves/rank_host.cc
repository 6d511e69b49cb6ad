#include "cli/replay/halves/rank_host.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <poll.h>

#include "cli/replay/halves/pulse.h"
#include "cli/replay/interrupt.h"

namespace stagelink::cli::replay {
namespace {

using Json = nlohmann::json;

constexpr auto kLongestTurn = std::chrono::milliseconds(100);
constexpr auto kReapTimeout = std::chrono::seconds(3);

}  // namespace

RankHost::RankHost(const RunPlan& plan, ControlChannel channel, std::string where)
    : plan_(plan),
      channel_(std::move(channel)),
      where_(std::move(where)),
      slots_(plan.base.prefill_ranks),
      last_heard_(Clock::now()),
      next_pulse_(Clock::now()) {}

Result<RankHost::Outcome> RankHost::serve() {
  SL_ASSIGN(const auto options, plan_.base.engine_options());
  runtime_dir_ = options.runtime_dir;
  Status status;
  while (status.ok() && !outcome_) {
    status = turn();
    if (InterruptGuard::interrupted()) status = Status(Reason::kCancelled, "interrupted");
  }
  stop_all();
  if (!status.ok()) return status;
  return *std::move(outcome_);
}

Status RankHost::turn() {
  wait();
  const auto now = Clock::now();
  if (now >= next_pulse_) {
    next_pulse_ = now + kPulseInterval;
    channel_.send({{"event", "pulse"}});
  }
  for (Slot& slot : slots_) {
    if (slot.process) SL_TRY(pass_on(slot));
  }
  channel_.flush();
  channel_.fill();
  while (!outcome_) {
    SL_ASSIGN(const auto message, channel_.next());
    if (!message) break;
    last_heard_ = now;
    SL_TRY(take(*message));
  }
  if (outcome_) return {};
  if (channel_.ended()) {
    return Status(Reason::kPeerLost, fmt::format("the decode half at {} has gone", where_));
  }
  if (now - last_heard_ <= kPulseSilence) return {};
  return Status(Reason::kPeerLost, fmt::format("the decode half at {} has been silent for {} s",
                                               where_, kPulseSilence / std::chrono::seconds(1)));
}

void RankHost::wait() {
  std::vector<pollfd> entries;
  const auto add = [&entries](int fd, bool writes) {
    entries.push_back({fd, static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
  };
  add(channel_.fd(), channel_.wants_write());
  for (const Slot& slot : slots_) {
    if (slot.process) add(slot.process->fd(), slot.process->wants_write());
  }
  ::poll(entries.data(), entries.size(), Deadline::in(kLongestTurn).left_ms());
}

Status RankHost::take(const Json& message) {
  const Json& event = message.at("event");
  if (event == "pulse") return {};
  if (event == "report") return take_report(message);
  SL_ASSIGN(const RankLife life, life_of(message, plan_.base.prefill_ranks));
  Slot& slot = slots_[life.rank];
  const bool runs = slot.process && slot.life == life;
  if (event == "start") {
    start(life);
  } else if (event == "kill") {
    if (runs) slot.process->kill();
  } else if (event == "tell") {
    SL_ASSIGN(const Json inside, told(message, plan_.base.decode_ranks));
    if (runs) slot.process->send(inside);
  } else {
    return Status(Reason::kFrame, fmt::format("the decode half at {} sent nonsense", where_));
  }
  return {};
}

Status RankHost::take_report(const Json& message) {
  const auto report = message.find("report");
  const auto code = message.find("exit_code");
  if (report == message.end() || !report->is_object() || code == message.end() ||
      !code->is_number_unsigned() || code->get<uint64_t>() > 255) {
    return Status(Reason::kFrame, fmt::format("the decode half at {} sent no report", where_));
  }
  outcome_ = Outcome{*report, static_cast<int>(code->get<uint64_t>())};
  return {};
}

// With this half's own configuration; the decode half has compared what matters to it.
void RankHost::start(RankLife life) {
  Slot& slot = slots_[life.rank];
  slot.process.reset();
  slot.life = life;
  RankConfig config = plan_.base;
  config.role = Role::kPrefill;
  config.rank = life.rank;
  auto process = RankProcess::start(config);
  if (process.ok()) {
    slot.process = *std::move(process);
    return;
  }
  Json ended = half_message("ended", life);
  ended["how"] = "could not be started: " + std::string(process.status().message());
  ended["well"] = false;
  channel_.send(ended);
}

Status RankHost::pass_on(Slot& slot) {
  slot.process->pump();
  for (;;) {
    auto event = slot.process->next();
    if (!event.ok()) {
      slot.process->kill();
      break;
    }
    if (!*event) break;
    Json outer = half_message("from", slot.life);
    outer["message"] = **std::move(event);
    channel_.send(outer);
  }
  if (slot.process->ended()) on_end(slot);
  return {};
}

void RankHost::on_end(Slot& slot) {
  Json ended = half_message("ended", slot.life);
  ended["how"] = slot.process->reap(Deadline::in(kReapTimeout));
  ended["well"] = slot.process->ended_well();
  slot.process.reset();
  remove_traces(runtime_dir_);
  channel_.send(ended);
}

void RankHost::stop_all() {
  const Deadline deadline = Deadline::in(kReapTimeout);
  const auto runs = [](const Slot& slot) { return slot.process != nullptr; };
  for (Slot& slot : slots_) {
    if (runs(slot)) slot.process->send({{"event", "stop"}});
  }
  while (std::ranges::any_of(slots_, runs) && !deadline.passed()) {
    wait();
    for (Slot& slot : slots_) {
      if (!runs(slot)) continue;
      slot.process->pump();
      for (auto event = slot.process->next(); event.ok() && *event; event = slot.process->next()) {
      }
      if (slot.process->ended()) slot.process.reset();
    }
  }
  for (Slot& slot : slots_) slot.process.reset();  // Kills what is left.
  remove_traces(runtime_dir_);
}

}  // namespace stagelink::cli::replay
