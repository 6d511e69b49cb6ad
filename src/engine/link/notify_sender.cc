#include "engine/link/notify_sender.h"

#include <utility>

#include "engine/core.h"

namespace stagelink::engine {
namespace {

constexpr size_t kMaxWaiting = 1024;

}  // namespace

NotifySender::NotifySender(EngineCore& core, std::string peer_name,
                           std::unique_ptr<NotifyPort> port)
    : core_(core), peer_name_(std::move(peer_name)), port_(std::move(port)) {}

Status NotifySender::send(Reason outcome, std::span<const std::byte> payload) {
  MutexLock lock(mutex_);
  if (push_waiting() && push(outcome, payload)) return Status();
  return Status(Reason::kRingFull,
                "peer " + peer_name_ + " has not taken its earlier notifications; try again");
}

bool NotifySender::send_later(Reason outcome, std::vector<std::byte> payload) {
  MutexLock lock(mutex_);
  if (push_waiting() && push(outcome, payload)) return true;
  if (waiting_.size() >= kMaxWaiting) {
    core_.report("notification after a transfer",
                 Status(Reason::kRingFull, "peer " + peer_name_ + " takes no notifications"));
    return true;
  }
  waiting_.push_back({outcome, std::move(payload)});
  waits_.store(true);
  return false;
}

void NotifySender::flush() {
  MutexLock lock(mutex_);
  (void)push_waiting();
}

bool NotifySender::push(Reason outcome, std::span<const std::byte> payload) {
  if (!port_->push(outcome, payload)) return false;
  core_.metrics().add(metrics::Counter::kNotificationsSent);
  return true;
}

bool NotifySender::push_waiting() {
  while (!waiting_.empty() && push(waiting_.front().outcome, waiting_.front().payload)) {
    waiting_.pop_front();
  }
  waits_.store(!waiting_.empty());
  return waiting_.empty();
}

}  // namespace stagelink::engine
