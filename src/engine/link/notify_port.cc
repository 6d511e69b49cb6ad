#include "engine/link/notify_port.h"

#include <string>
#include <utility>

#include "wire/notify_record.h"

namespace stagelink::engine {

bool RingNotifyPort::push(Reason outcome, std::span<const std::byte> payload) {
  if (!producer_.push(outcome, payload)) return false;
  view_.ring_bell();
  return true;
}

FrameNotifyPort::FrameNotifyPort(uint64_t window, std::function<void()> hand_over)
    : window_(window), hand_over_(std::move(hand_over)) {}

bool FrameNotifyPort::push(Reason outcome, std::span<const std::byte> payload) {
  const uint64_t bytes = wire::notify_ring_bytes(payload.size());
  const auto header = wire::encode_notify_header(outcome, static_cast<uint32_t>(payload.size()));
  Payload record(header.begin(), header.end());
  record.insert(record.end(), payload.begin(), payload.end());
  bool first = false;
  {
    MutexLock lock(mutex_);
    const uint64_t under_way = sent_ - acknowledged_;
    if (under_way > window_ || bytes > window_ - under_way) return false;
    sent_ += bytes;
    first = waiting_.empty();
    waiting_.push_back(std::move(record));
  }
  if (first) hand_over_();
  return true;
}

std::vector<FrameNotifyPort::Payload> FrameNotifyPort::take() {
  MutexLock lock(mutex_);
  return std::exchange(waiting_, {});
}

Status FrameNotifyPort::on_ack(std::span<const std::byte> payload) {
  SL_ASSIGN(const wire::NotifyAck ack, wire::decode_notify_ack(payload));
  MutexLock lock(mutex_);
  if (ack.taken < acknowledged_ || ack.taken > sent_) {
    return Status(Reason::kFrame, "notify_ack of " + std::to_string(ack.taken) + " bytes; " +
                                      std::to_string(sent_) + " were sent and " +
                                      std::to_string(acknowledged_) + " acknowledged");
  }
  acknowledged_ = ack.taken;
  return Status();
}

}  // namespace stagelink::engine
