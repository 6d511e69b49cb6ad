#include "connector/moriio/move/flight.h"

#include <algorithm>
#include <utility>

namespace stagelink::moriio {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(1);
constexpr Duration kLongestBackoff = std::chrono::milliseconds(50);

}  // namespace

void Flight::add(std::vector<Move> moves) {
  for (Move& move : merge_moves(std::move(moves))) {
    if (!move.ranges.sizes.empty()) unposted_.push_back(std::move(move));
  }
}

Status Flight::post(Clock::time_point now, Duration timeout) {
  while (!unposted_.empty()) {
    const Move& next = unposted_.front();
    auto posted = next.target->post(direction_, next.ranges, timeout);
    if (!posted.ok() && posted.status().code() == Code::kBusy) {
      backoff_ = std::clamp(backoff_ * 2, kFirstBackoff, kLongestBackoff);
      retry_at_ = now + backoff_;
      return {};
    }
    if (!posted.ok()) return posted.status();
    backoff_ = Duration::zero();
    ++batches_;
    posted_.push_back({*std::move(posted), next.ranges.bytes()});
    unposted_.pop_front();
  }
  return {};
}

Status Flight::poll(Duration patience) {
  for (size_t i = 0; i < posted_.size();) {
    const TransferPhase phase = posted_[i].move->poll(std::exchange(patience, Duration::zero()));
    if (phase == TransferPhase::kFailed) {
      Status why = posted_[i].move->status();
      posted_.erase(posted_.begin() + static_cast<std::ptrdiff_t>(i));
      if (why.ok()) why = Status(Reason::kSystem, "a batch failed without a reason");
      return why;
    }
    if (phase == TransferPhase::kRunning) {
      ++i;
      continue;
    }
    bytes_landed_ += posted_[i].bytes;
    posted_.erase(posted_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return {};
}

Status Flight::cancel() {
  unposted_.clear();
  Status first;
  std::vector<Posted> stuck;
  for (Posted& posted : posted_) {
    Status outcome = posted.move->cancel();
    if (outcome.ok()) continue;
    stuck.push_back(std::move(posted));
    if (first.ok()) first = std::move(outcome);
  }
  posted_ = std::move(stuck);
  return first;
}

}  // namespace stagelink::moriio
