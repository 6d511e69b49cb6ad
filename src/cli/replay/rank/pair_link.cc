#include "cli/replay/rank/pair_link.h"

#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace stagelink::cli::replay {

Status PairLink::connect(std::span<const std::byte> descriptor, Duration timeout) {
  drop();
  SL_ASSIGN(peer_, engine_.connect(descriptor, timeout));
  return {};
}

Status PairLink::open_session(std::span<const std::byte> packed_region,
                              uint32_t remote_pool_blocks) {
  if (!peer_) return Status(Reason::kClosed, "no session without a connected peer");
  SL_ASSIGN(const auto region, RegionDesc::unpack(packed_region));
  const Region* const local[] = {&pool_};
  const RegionDesc remote[] = {region};
  SL_ASSIGN(session_, peer_->session(local, remote));
  remote_pool_blocks_ = remote_pool_blocks;
  return {};
}

void PairLink::drop() noexcept {
  queue_.clear();
  session_.reset();
  peer_.reset();
}

bool PairLink::connected() const noexcept { return peer_ && peer_->phase() != PeerPhase::kLost; }

void PairLink::post(const PairMessage& message) {
  if (peer_) queue_.push_back(encode(message));
}

void PairLink::post(std::span<const PairMessage> messages) {
  for (const PairMessage& message : messages) post(message);
}

Status PairLink::flush() {
  while (peer_ && !queue_.empty()) {
    const Status sent = peer_->notify(queue_.front());
    if (sent.code() == Code::kBusy) return {};
    if (!sent.ok()) {
      drop();
      return sent;
    }
    queue_.pop_front();
  }
  return {};
}

Status PairLink::flush_all(const Deadline& deadline) {
  constexpr auto kPause = std::chrono::microseconds(100);
  for (;;) {
    SL_TRY(flush());
    if (queue_.empty()) return {};
    if (deadline.passed()) {
      return Status(Reason::kTimedOut,
                    fmt::format("the peer took none of {} messages in time", queue_.size()));
    }
    std::this_thread::sleep_for(kPause);
  }
}

Status PairLink::notify_after(const PairMessage& message, const Transfer& transfer) {
  if (!peer_) return Status(Reason::kClosed, "no notification without a connected peer");
  return peer_->notify(encode(message), transfer);
}

}  // namespace stagelink::cli::replay
