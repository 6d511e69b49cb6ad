#include "transport/stream/staging.h"

#include <algorithm>
#include <utility>

#include "memory/memfd.h"
#include "transport/stream/frame_sender.h"
#include "transport/stream/piece_list.h"
#include "wire/frame.h"
#include "wire/staged.h"

namespace stagelink::transport {
namespace {

// Small enough to stay in the first caches, large enough for its frames to cost little.
constexpr size_t kStepBytes = 64 << 10;
// What is announced as taken at once: the other end does not run out of room meanwhile.
constexpr uint32_t kAnnounceBytes = StagingArea::kHalfBytes / 4;

}  // namespace

Staging::Staging(StagingArea area, End end) noexcept
    : area_(std::move(area)),
      out_(end == End::kOwner ? area_.from_owner() : area_.from_initiator()),
      in_(end == End::kOwner ? area_.from_initiator() : area_.from_owner()) {}

// Pages come with the first use. Where memory is short the kernel says so here, and not by ending
// the process that writes.
bool Staging::has_memory() {
  if (memory_ == Memory::kUnknown) {
    memory_ = memory::reserve_by_fault(out_, -1).ok() ? Memory::kThere : Memory::kNone;
  }
  return memory_ == Memory::kThere;
}

size_t Staging::send(FrameSender& sender, uint64_t request_id, PieceList& source,
                     uint64_t max_bytes) {
  const size_t wanted = std::min<uint64_t>({max_bytes, source.left(), kStepBytes});
  if (wanted == 0 || out_.size() - put_ < wanted || !has_memory()) return 0;
  for (size_t left = wanted; left > 0;) {
    const size_t part =
        source.copy_out(out_.subspan(put_at_, std::min(left, out_.size() - put_at_)));
    source.advance(part);
    put_at_ = (put_at_ + part) % out_.size();
    left -= part;
  }
  put_ += wanted;
  sender.add_frame(wire::FrameType::kStaged, request_id,
                   wire::encode_staged(static_cast<uint32_t>(wanted)));
  return wanted;
}

bool Staging::acknowledge(uint32_t bytes) noexcept {
  if (bytes > put_) return false;
  put_ -= bytes;
  return true;
}

void Staging::receive(FrameSender& sender, PieceList* target, uint32_t bytes) {
  for (size_t left = bytes; left > 0;) {
    const size_t part = std::min(left, in_.size() - taken_at_);
    if (target != nullptr) {
      target->copy_in(in_.subspan(taken_at_, part));
      target->advance(part);
    }
    taken_at_ = (taken_at_ + part) % in_.size();
    left -= part;
  }
  taken_ += bytes;
  if (taken_ < kAnnounceBytes) return;
  sender.add_frame(wire::FrameType::kStagedAck, 0, wire::encode_staged(std::exchange(taken_, 0)));
}

}  // namespace stagelink::transport
