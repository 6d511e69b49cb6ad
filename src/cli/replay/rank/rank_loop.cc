#include "cli/replay/rank/rank_loop.h"

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <poll.h>

#include "base/log.h"
#include "cli/replay/rank/decode_rank.h"
#include "cli/replay/rank/hex.h"
#include "cli/replay/rank/prefill_rank.h"

namespace stagelink::cli::replay {
namespace {

using Json = nlohmann::json;

constexpr auto kStartTimeout = std::chrono::seconds(10);
constexpr auto kCloseTimeout = std::chrono::seconds(3);

// Sleeps until the parent or a peer has something for us, or the time is over.
void sleep(const ControlChannel& parent, int engine_fd, Duration patience) {
  const short parent_events = parent.wants_write() ? POLLIN | POLLOUT : POLLIN;
  std::array<pollfd, 2> fds = {pollfd{parent.fd(), parent_events, 0}, pollfd{engine_fd, POLLIN, 0}};
  const nfds_t count = engine_fd < 0 ? 1 : 2;
  ::poll(fds.data(), count, Deadline::in(patience).left_ms());
}

Result<RankConfig> receive_config(ControlChannel& parent) {
  const Deadline deadline = Deadline::in(kStartTimeout);
  while (!deadline.passed()) {
    parent.fill();
    SL_ASSIGN(auto event, parent.next());
    if (event) return rank_config_from(*event);
    if (parent.ended()) return Status(Reason::kPeerLost, "the parent is gone");
    sleep(parent, -1, deadline.left());
  }
  return Status(Reason::kTimedOut, "no configuration came from the parent");
}

Result<std::unique_ptr<Rank>> make_rank(const RankContext& context) {
  if (context.config.role == Role::kDecode) {
    SL_ASSIGN(auto decode, DecodeRank::create(context));
    return std::unique_ptr<Rank>(std::move(decode));
  }
  SL_ASSIGN(auto prefill, PrefillRank::create(context));
  return std::unique_ptr<Rank>(std::move(prefill));
}

// True when the parent says stop, or is gone.
Result<bool> handle_events(const RankContext& context, Rank& rank) {
  context.parent.flush();
  context.parent.fill();
  for (;;) {
    SL_ASSIGN(const auto event, context.parent.next());
    if (!event) return context.parent.ended();
    if (event->at("event") == "stop") return true;
    if (event->at("event") == "ping") {
      context.report({{"event", "pong"}});
    } else {
      SL_TRY(rank.on_event(*event));
    }
  }
}

Status handle_messages(const RankContext& context, Rank& rank) {
  SL_ASSIGN(const auto notifications, context.engine.notifications(Duration::zero()));
  for (const Notification& notification : notifications) {
    auto message = decode_pair_message(notification.payload);
    if (!message.ok()) {
      log_failure("replay", message.status());
      context.report_error(message.status().reason());
      continue;
    }
    rank.on_message({notification.source, notification.outcome, *std::move(message)});
  }
  return {};
}

Status work(const RankContext& context, Rank& rank) {
  SL_ASSIGN(const int engine_fd, context.engine.fileno());
  for (;;) {
    sleep(context.parent, engine_fd, rank.patience());
    SL_ASSIGN(const bool stop, handle_events(context, rank));
    if (stop) return {};
    SL_TRY(handle_messages(context, rank));
    rank.step();
  }
}

Status live(const RankConfig& config, ControlChannel& parent) {
  SL_ASSIGN(const auto options, config.engine_options());
  SL_ASSIGN(const auto engine, Engine::create(options));
  SL_ASSIGN(auto pool, PoolMemory::create(*engine, config));
  const RankContext context{config, *engine, pool, parent};
  SL_ASSIGN(auto rank, make_rank(context));
  context.report({{"event", "ready"}, {"descriptor", to_hex(engine->descriptor())}});
  SL_TRY(work(context, *rank));
  Json summary = rank->summary();
  summary["event"] = "stopped";
  context.report(summary);
  rank.reset();
  return engine->close(kCloseTimeout);
}

}  // namespace

Status run_rank(ControlChannel& parent) {
  auto config = receive_config(parent);
  Status lived = config.status();
  if (config.ok()) {
    try {
      lived = live(*config, parent);
    } catch (const Json::exception& error) {
      lived = Status(Reason::kFrame, fmt::format("an event of the parent: {}", error.what()));
    }
  }
  if (!lived.ok()) parent.send({{"event", "failed"}, {"message", lived.to_string()}});
  return lived;
}

}  // namespace stagelink::cli::replay
