#include "cli/replay/halves/remote_ranks.h"

#include <utility>

#include <fmt/format.h>
#include <poll.h>

#include "base/text.h"
#include "cli/replay/halves/pulse.h"

namespace stagelink::cli::replay {

using Json = nlohmann::json;

// Thread-safety: one thread.
class RemoteRanks::Rank final : public RankHandle {
 public:
  Rank(RemoteRanks& ranks, RankLife life)
      : ranks_(ranks),
        life_(life),
        name_(fmt::format("prefill rank {} at {}", life.rank, ranks.where_)) {
    ranks_.running_.emplace(life, this);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() override {
    if (!over_) kill();
    ranks_.running_.erase(life_);
  }

  const std::string& name() const noexcept override { return name_; }
  int fd() const noexcept override { return ranks_.lost() ? -1 : ranks_.channel_.fd(); }
  bool wants_write() const noexcept override { return ranks_.channel_.wants_write(); }
  void pump() override { ranks_.pump(); }
  void send(const Json& message) override {
    Json outer = half_message("tell", life_);
    outer["message"] = message;
    ranks_.channel_.send(outer);
  }
  Result<std::optional<Json>> next() override {
    if (events_.empty()) return std::optional<Json>();
    std::optional<Json> event(std::move(events_.front()));
    events_.pop_front();
    return event;
  }
  bool ended() const noexcept override { return over_ && events_.empty(); }

  void kill() noexcept override {
    if (!ranks_.lost()) ranks_.channel_.send(half_message("kill", life_));
  }
  const std::string& reap(const Deadline& deadline) override {
    while (!over_ && !deadline.passed()) ranks_.wait(deadline.left());
    if (!over_) {
      kill();
      end("did not end in time", false);
    }
    return ending_;
  }
  bool ended_well() const noexcept override { return ended_well_; }

  void hear(Json event) {
    if (!over_) events_.push_back(std::move(event));
  }
  void end(std::string how, bool well) {
    over_ = true;
    ended_well_ = well;
    ending_ = std::move(how);
  }

 private:
  RemoteRanks& ranks_;
  const RankLife life_;
  const std::string name_;
  std::deque<Json> events_;
  bool over_ = false;
  bool ended_well_ = false;
  std::string ending_;
};

RemoteRanks::RemoteRanks(ControlChannel channel, std::string where, uint32_t ranks)
    : channel_(std::move(channel)),
      where_(std::move(where)),
      ranks_(ranks),
      last_heard_(Clock::now()),
      next_pulse_(Clock::now()) {}

RemoteRanks::~RemoteRanks() = default;

Result<std::unique_ptr<RankHandle>> RemoteRanks::start(const RankConfig& config) {
  if (lost()) return loss_;
  const RankLife life{config.rank, next_life_++};
  auto rank = std::make_unique<Rank>(*this, life);
  channel_.send(half_message("start", life));
  return std::unique_ptr<RankHandle>(std::move(rank));
}

void RemoteRanks::pump() {
  if (lost()) return;
  const auto now = Clock::now();
  if (now >= next_pulse_) {
    next_pulse_ = now + kPulseInterval;
    channel_.send({{"event", "pulse"}});
  }
  channel_.flush();
  channel_.fill();
  for (;;) {
    auto message = channel_.next();
    if (message.ok() && !*message) break;
    last_heard_ = now;
    const Status taken = message.ok() ? take(**message) : message.status();
    if (!taken.ok()) return lose(taken);
  }
  if (channel_.ended()) {
    lose(Status(Reason::kPeerLost, fmt::format("the prefill half at {} has gone", where_)));
  } else if (now - last_heard_ > kPulseSilence) {
    lose(Status(Reason::kPeerLost, fmt::format("the prefill half at {} has been silent for {} s",
                                               where_, kPulseSilence / std::chrono::seconds(1))));
  }
}

void RemoteRanks::wait(Duration patience) {
  const short events = channel_.wants_write() ? POLLIN | POLLOUT : POLLIN;
  pollfd entry{.fd = lost() ? -1 : channel_.fd(), .events = events, .revents = 0};
  ::poll(&entry, 1, Deadline::in(std::min<Duration>(patience, kPulseInterval)).left_ms());
  pump();
}

Status RemoteRanks::take(const Json& message) {
  const Json& event = message.at("event");
  if (event == "pulse") return {};
  if (event == "refused") {
    return Status(Reason::kPeerLost, fmt::format("the prefill half at {} has stopped", where_));
  }
  SL_ASSIGN(const RankLife life, life_of(message, ranks_));
  const auto found = running_.find(life);
  if (event == "from") {
    SL_ASSIGN(Json inside, said(message));
    if (found != running_.end()) found->second->hear(std::move(inside));
    return {};
  }
  if (event != "ended" || !message.contains("how") || !message["how"].is_string() ||
      !message.contains("well") || !message["well"].is_boolean()) {
    return Status(Reason::kFrame, fmt::format("the prefill half at {} sent nonsense", where_));
  }
  if (found == running_.end()) return {};
  found->second->end(escape_control(message["how"].get<std::string>().substr(0, 200)),
                     message["well"].get<bool>());
  return {};
}

void RemoteRanks::lose(Status why) {
  loss_ = std::move(why);
  for (const auto& [life, rank] : running_) {
    rank->end(fmt::format("is lost: {}", loss_.message()), false);
  }
}

void RemoteRanks::finish(const Json& report, int exit_code, const Deadline& deadline) {
  if (lost()) return;
  channel_.send({{"event", "report"}, {"report", report}, {"exit_code", exit_code}});
  // The other half closes when it has the report.
  while (!lost() && !deadline.passed()) wait(deadline.left());
}

}  // namespace stagelink::cli::replay
