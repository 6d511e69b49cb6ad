#include "connector/encoder_cache/push/push_link.h"

#include <fmt/format.h>

#include "base/text.h"

namespace stagelink::encoder_cache {

Status PushLink::send(std::vector<uint64_t>& sent) {
  for (size_t kind = 0; kind < outbox_.size(); ++kind) {
    while (may_send(kind)) {
      const PushLetter& letter = outbox_[kind].front();
      const std::array<zmq::FrameSpan, 2> frames = {zmq::FrameSpan(),
                                                    std::as_bytes(std::span(letter.message))};
      if (socket_.send(frames, Deadline::in(Duration::zero())).ok()) {
        if (letter.id != 0) {
          unanswered_[kind].insert(letter.id);
          sent.push_back(letter.id);
        }
        outbox_[kind].pop_front();
        stuck_.reset();
        continue;
      }
      // One that answers is slow and not away.
      const bool is_heard = Deadline::Clock::now() - heard_ < patience_;
      if (!stuck_.has_value() || is_heard) stuck_ = Deadline::in(patience_);
      if (!stuck_->passed()) return {};
      return Status(Reason::kUnreachable,
                    fmt::format("no connection to the consumer in {}", format_duration(patience_)));
    }
  }
  return {};
}

std::optional<Result<PushReply>> PushLink::receive() {
  auto frames = socket_.receive(Deadline::in(Duration::zero()));
  if (!frames.ok() || !frames->has_value()) return std::nullopt;
  heard_ = Deadline::Clock::now();
  const auto& bytes = (*frames)->back();
  auto reply = decode_reply({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (reply.ok()) {
    for (auto& ids : unanswered_) ids.erase((*reply).id);
  }
  return reply;
}

}  // namespace stagelink::encoder_cache
