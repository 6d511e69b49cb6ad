#include "store/yuanrong/channel/worker_port.h"

#include <utility>

#include <fmt/format.h>

#include "base/fork_guard.h"
#include "base/log.h"
#include "store/yuanrong/channel/broker_process.h"
#include "store/yuanrong/channel/codes.h"

namespace stagelink::store::yuanrong {
namespace {

using namespace std::chrono_literals;

// More would only be the next ones to die.
constexpr size_t kMostStarts = 5;
constexpr auto kStartsWithin = 60s;

constexpr std::array<std::string_view, kTroubles> kTroubleNames = {
    "broker_lost",   "broker_started", "worker_down", "partition",
    "out_of_memory", "evicted",        "corrupt",     "views_lost"};

// Of independent counts.
constexpr auto kLoose = std::memory_order_relaxed;

Status port_closed() { return Status(Reason::kClosed, "the store is closed"); }

void warn_of_detours(const Link& link, const YuanrongOptions& options) {
  const auto is_down = [](const std::atomic<uint32_t>& seen) {
    return seen.load() == static_cast<uint32_t>(Seen::kDown);
  };
  if (is_down(link.watch().memory)) {
    log(LogLevel::kWarning, "yuanrong",
        fmt::format(
            "the worker {}:{} does not share its memory with this user: every value is copied. "
            "Run the worker on this host and as this user",
            options.host, options.port));
  }
  if (is_down(link.watch().exclusive)) {
    log(LogLevel::kWarning, "yuanrong",
        fmt::format("the worker {}:{} has no exclusive connection left (128 for each worker): "
                    "operations take about twice as long",
                    options.host, options.port));
  }
}

}  // namespace

Result<std::shared_ptr<WorkerPort>> WorkerPort::open(const YuanrongOptions& options) {
  SL_ASSIGN(WorkerOptions worker, read_worker_options(options));
  std::shared_ptr<WorkerPort> port(new WorkerPort(options, std::move(worker)));
  auto first = port->link(Deadline::in(options.connect_timeout));
  if (!first.ok()) {
    log_failure("yuanrong", first.status());
    return first.status();
  }
  return port;
}

WorkerPort::WorkerPort(YuanrongOptions options, WorkerOptions worker)
    : fork_token_(ForkGuard::arm()), options_(std::move(options)), worker_(std::move(worker)) {}

Result<std::shared_ptr<Link>> WorkerPort::link(const Deadline& deadline) {
  {
    const MutexLock lock(mutex_);
    for (;;) {
      if (closed_) return port_closed();
      if (link_ != nullptr) {
        if (link_->alive().ok()) return link_;
        count(Trouble::kBrokerLost);
        count(Trouble::kViewsLost, link_->held());
        link_ = nullptr;
      }
      if (!connecting_) break;
      if (!changed_.wait_until(mutex_, deadline)) {
        return Status(Reason::kConnectTimeout, "another thread is connecting to the broker");
      }
    }
    SL_TRY(may_start_again());
    connecting_ = true;
  }
  Result<std::shared_ptr<Link>> made = connect(deadline);
  const MutexLock lock(mutex_);
  connecting_ = false;
  changed_.notify_all();
  if (!made.ok()) return made;
  if (closed_) return port_closed();
  count(Trouble::kBrokerStarted);
  link_ = *made;
  return made;
}

Status WorkerPort::may_start_again() {
  const auto now = Deadline::Clock::now();
  while (!starts_.empty() && now - starts_.front() > kStartsWithin) starts_.pop_front();
  if (starts_.size() >= kMostStarts) {
    return Status(
        Reason::kUnreachable,
        fmt::format("the broker of the Yuanrong worker was started {} times within {} s and "
                    "did not stay",
                    starts_.size(), kStartsWithin.count()));
  }
  starts_.push_back(now);
  return {};
}

// A broker that ends with its last client in this very moment refuses once.
Result<std::shared_ptr<Link>> WorkerPort::connect(const Deadline& deadline) {
  for (;;) {
    SL_ASSIGN(UniqueFd socket, connect_to_broker(options_, deadline));
    auto link = Link::open(std::move(socket), worker_, deadline);
    if (link.ok()) {
      warn_of_detours(**link, options_);
      return link;
    }
    if (link.status().code() != Code::kPeerLost || deadline.left() < 100ms) return link;
    pause(10ms);
  }
}

Result<LinkAnswer> WorkerPort::call(const LinkCall& call, const Deadline& deadline) {
  if (ForkGuard::forked(fork_token_)) return forked_status("the store");
  auto way = link(Deadline::earlier(deadline, Deadline::in(options_.connect_timeout)));
  if (!way.ok()) return note(call.op, way.status());
  return call_over(**way, call, deadline);
}

Status WorkerPort::ready(Op op, const Deadline& deadline) {
  if (ForkGuard::forked(fork_token_)) return forked_status("the store");
  auto way = link(Deadline::earlier(deadline, Deadline::in(options_.connect_timeout)));
  return note(op, way.ok() ? (*way)->worker_state() : way.status());
}

Result<LinkAnswer> WorkerPort::call_over(Link& link, const LinkCall& call,
                                         const Deadline& deadline) {
  Result<LinkAnswer> answer = link.call(call, deadline);
  if (!answer.ok()) return note(call.op, answer.status());
  return answer;
}

// A timeout and a closed store are states; the rest is logged where it arises, which is here. What
// takes too long while a worker of the ring is cut off has waited for that one.
Status WorkerPort::note(Op op, Status status) {
  if (status.ok()) return status;
  if (status.code() == Code::kTimedOut) {
    if (Status cut = judge_miss(); !cut.ok()) return cut;
  }
  if (status.code() == Code::kUnreachable) count(Trouble::kWorkerDown);
  if (status.code() != Code::kTimedOut && status.code() != Code::kInvalidState) {
    log_failure(fmt::format("yuanrong {}", op_name(op)), status);
  }
  return status;
}

Status WorkerPort::failure(Op op, const LinkAnswer& answer) {
  Status status = call_failure(op, answer.code, answer.message);
  const bool transport = status.code() == Code::kUnreachable || status.code() == Code::kTimedOut;
  if (transport) {
    if (Status cut = judge_miss(); !cut.ok()) return cut;
    // The worker is well, or the call would have failed before: it looked for space until its time
    // was over.
    if (op == Op::kCreate) status = Status(Reason::kNoSpace, std::string(status.message()));
  }
  if (status.code() == Code::kNoSpace) {
    count(Trouble::kOutOfMemory);
    return status;
  }
  return note(op, std::move(status));
}

Status WorkerPort::judge_miss() {
  std::shared_ptr<Link> now;
  {
    const MutexLock lock(mutex_);
    now = link_;
  }
  if (now == nullptr) return {};
  Status status = now->ring_state();
  if (status.ok()) return status;
  count(Trouble::kPartition);
  log_failure("yuanrong", status);
  return status;
}

void WorkerPort::count(Trouble trouble, uint64_t by) noexcept {
  troubles_[static_cast<size_t>(trouble)].fetch_add(by, kLoose);
}

void WorkerPort::pause(Duration duration) {
  const Deadline end = Deadline::in(duration);
  const MutexLock lock(mutex_);
  while (!closed_ && changed_.wait_until(mutex_, end)) {
  }
}

Status WorkerPort::health() {
  if (ForkGuard::forked(fork_token_)) return forked_status("the store");
  const MutexLock lock(mutex_);
  if (closed_) return port_closed();
  if (link_ == nullptr) return Status(Reason::kPeerLost, "there is no broker just now");
  SL_TRY(link_->alive());
  return link_->worker_state();
}

void WorkerPort::close() {
  if (ForkGuard::forked(fork_token_)) return;  // A thread of the parent may hold the mutex.
  std::shared_ptr<Link> last;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    last = std::move(link_);
    changed_.notify_all();
  }
  if (last != nullptr) last->close(port_closed());
}

bool WorkerPort::closed() const {
  const MutexLock lock(mutex_);
  return closed_;
}

std::string WorkerPort::metrics_text(std::string_view labels) {
  if (ForkGuard::forked(fork_token_)) return "";
  std::string out =
      "# HELP stagelink_yuanrong_events_total What went wrong on the way to the worker.\n"
      "# TYPE stagelink_yuanrong_events_total counter\n";
  for (size_t i = 0; i < kTroubles; ++i) {
    out += fmt::format("stagelink_yuanrong_events_total{{{},event=\"{}\"}} {}\n", labels,
                       kTroubleNames[i], troubles_[i].load(kLoose));
  }
  std::shared_ptr<Link> now;
  {
    const MutexLock lock(mutex_);
    now = link_;
  }
  if (now == nullptr) return out;
  const Watch& watch = now->watch();
  out +=
      "# HELP stagelink_yuanrong_up 1: reached, or used; 0: not; nothing: not known.\n"
      "# TYPE stagelink_yuanrong_up gauge\n";
  const auto gauge = [&](std::string_view part, const std::atomic<uint32_t>& seen) {
    const uint32_t value = seen.load();
    if (value == static_cast<uint32_t>(Seen::kUnknown)) return;
    out += fmt::format("stagelink_yuanrong_up{{{},part=\"{}\"}} {}\n", labels, part,
                       value == static_cast<uint32_t>(Seen::kUp) ? 1 : 0);
  };
  gauge("worker", watch.worker);
  gauge("ring", watch.ring);
  gauge("etcd", watch.coordinator);
  gauge("shared_memory", watch.memory);
  gauge("exclusive_connection", watch.exclusive);
  out += fmt::format(
      "# HELP stagelink_yuanrong_losses_total How often a part was lost, as the broker saw it.\n"
      "# TYPE stagelink_yuanrong_losses_total counter\n"
      "stagelink_yuanrong_losses_total{{{0},part=\"worker\"}} {1}\n"
      "stagelink_yuanrong_losses_total{{{0},part=\"ring\"}} {2}\n"
      "stagelink_yuanrong_losses_total{{{0},part=\"etcd\"}} {3}\n"
      "# HELP stagelink_yuanrong_held_objects Objects held by views and writers.\n"
      "# TYPE stagelink_yuanrong_held_objects gauge\n"
      "stagelink_yuanrong_held_objects{{{0}}} {4}\n"
      "# HELP stagelink_yuanrong_broker_pid The process that holds the client library.\n"
      "# TYPE stagelink_yuanrong_broker_pid gauge\n"
      "stagelink_yuanrong_broker_pid{{{0}}} {5}\n",
      labels, watch.worker_losses.load(), watch.ring_losses.load(), watch.coordinator_losses.load(),
      now->held(), watch.broker_pid.load());
  return out;
}

}  // namespace stagelink::store::yuanrong
