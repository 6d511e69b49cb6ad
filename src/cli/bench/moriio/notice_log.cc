#include "cli/bench/moriio/notice_log.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "connector/moriio/messages/notify_message.h"

namespace stagelink::cli::bench {

namespace {

constexpr auto kArrivalTimeout = std::chrono::seconds(60);
constexpr char kClockMark = '@';

uint64_t to_ns(double us) noexcept { return static_cast<uint64_t>(us * 1e3); }

// 0 if it has none.
double clock_in(const std::string& id) {
  const size_t mark = id.find(kClockMark);
  double us = 0;
  if (mark != std::string::npos) {
    std::from_chars(id.data() + mark + 1, id.data() + id.size(), us);
  }
  return us;
}

}  // namespace

std::string clocked_id(uint64_t number, double begun_us) {
  return fmt::format("bench-{}{}{:.1f}", number, kClockMark, begun_us);
}

Result<std::unique_ptr<NoticeLog>> NoticeLog::start() {
  SL_ASSIGN(auto library, zmq::Library::load());
  SL_ASSIGN(auto context, zmq::Context::create(std::move(library)));
  SL_ASSIGN(zmq::Router router, zmq::Router::bind(std::move(context), {}));
  std::unique_ptr<NoticeLog> log(new NoticeLog());
  SL_ASSIGN(log->listener_, zmq::Listener::start(std::move(router), "sl-notify", *log));
  return log;
}

std::vector<zmq::Frames> NoticeLog::on_message(zmq::Frames frames) {
  const double now = now_us();
  if (frames.empty()) return {};
  const auto message = moriio::decode_notify_message(frames.back());
  if (!message.ok() || !std::holds_alternative<moriio::WriteDone>(*message)) return {};
  MutexLock lock(mutex_);
  last_us_ = now;
  delays_us_.push_back(now - clock_in(moriio::transfer_id(*message)));
  arrived_.notify_all();
  return {};
}

Result<Message> NoticeLog::await(size_t count) {
  const Deadline deadline = Deadline::in(kArrivalTimeout);
  MutexLock lock(mutex_);
  while (delays_us_.size() < count) {
    if (deadline.passed()) {
      return Status(Reason::kTimedOut,
                    fmt::format("{} of {} transfers were announced", delays_us_.size(), count));
    }
    arrived_.wait_until(mutex_, deadline);
  }
  std::vector<double> delays_us = std::exchange(delays_us_, {});
  Message message;
  message.values[0] = to_ns(last_us_);
  message.values[1] = to_ns(percentile(delays_us, 0.5));
  message.values[2] = to_ns(percentile(std::move(delays_us), 0.99));
  return message;
}

}  // namespace stagelink::cli::bench
