#include "connector/moriio/move/io_session_target.h"

#include <string>
#include <utility>

namespace stagelink::moriio {
namespace {

// The reason that begins a status's message ("peer_lost: ..."), else what its code comes closest
// to.
Status status_of(TransferStatus& status) {
  const std::string text = status.message();
  if (text.starts_with("SQ full")) return {Reason::kTooManyTransfers, text};
  for (int i = 1; i < kReasonCount; ++i) {
    const auto reason = static_cast<Reason>(i);
    if (text.starts_with(std::string(reason_name(reason)) + " (")) return {reason, text};
  }
  switch (status.code()) {
    case StatusCode::kInvalidArgs: return {Reason::kInvalidArgument, text};
    case StatusCode::kNotFound: return {Reason::kNotFound, text};
    case StatusCode::kBadState: return {Reason::kInvalidState, text};
    default: return {Reason::kSystem, text};
  }
}

class IoMove final : public PostedMove {
 public:
  explicit IoMove(StatusRef status) noexcept : status_(std::move(status)) {}

  TransferPhase poll(Duration patience) override {
    const StatusCode code = status_->wait_for(patience);
    if (is_failure(code)) return TransferPhase::kFailed;
    return code == StatusCode::kSuccess ? TransferPhase::kSucceeded : TransferPhase::kRunning;
  }
  Status cancel() override {
    status_->cancel();
    return {};
  }
  Status status() const override { return status_->failed() ? status_of(*status_) : Status(); }

 private:
  const StatusRef status_;
};

class IoSessionTarget final : public MoveTarget {
 public:
  explicit IoSessionTarget(std::shared_ptr<IoSession> session) noexcept
      : session_(std::move(session)) {}

  Result<std::unique_ptr<PostedMove>> post(MoveDirection direction, const Ranges& ranges,
                                           Duration /*timeout*/) override {
    const IoRanges list{ranges.local_offsets, ranges.remote_offsets, ranges.sizes};
    const uint64_t id = session_->allocate_transfer_uid();
    StatusRef status = direction == MoveDirection::kRead ? session_->batch_read(list, id)
                                                         : session_->batch_write(list, id);
    if (status->failed()) return status_of(*status);
    return std::unique_ptr<PostedMove>(std::make_unique<IoMove>(std::move(status)));
  }
  // Sessions of one pair of memories are many (one for each layer of a shared cache) and alike.
  uint64_t identity() const noexcept override { return reinterpret_cast<uint64_t>(session_.get()); }

 private:
  const std::shared_ptr<IoSession> session_;
};

}  // namespace

std::shared_ptr<MoveTarget> make_io_session_target(std::shared_ptr<IoSession> session) {
  return std::make_shared<IoSessionTarget>(std::move(session));
}

}  // namespace stagelink::moriio
