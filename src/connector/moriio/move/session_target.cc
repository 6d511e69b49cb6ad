#include "connector/moriio/move/session_target.h"

#include <utility>

namespace stagelink::moriio {
namespace {

class EngineMove final : public PostedMove {
 public:
  explicit EngineMove(Transfer transfer) : transfer_(std::move(transfer)) {}
  TransferPhase poll(Duration patience) override { return transfer_.poll(patience); }
  Status cancel() override {
    transfer_.cancel();
    return {};
  }
  Status status() const override { return transfer_.status(); }

 private:
  Transfer transfer_;
};

class SessionTarget final : public MoveTarget {
 public:
  explicit SessionTarget(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  Result<std::unique_ptr<PostedMove>> post(MoveDirection direction, const Ranges& ranges,
                                           Duration timeout) override {
    const RangeList list{.local_offsets = ranges.local_offsets,
                         .remote_offsets = ranges.remote_offsets,
                         .sizes = ranges.sizes,
                         .local_regions = {},
                         .remote_regions = {}};
    auto transfer = direction == MoveDirection::kRead ? session_->read(list, timeout)
                                                      : session_->write(list, timeout);
    if (!transfer.ok()) return transfer.status();
    return std::unique_ptr<PostedMove>(std::make_unique<EngineMove>(*std::move(transfer)));
  }
  uint64_t identity() const noexcept override { return reinterpret_cast<uint64_t>(session_.get()); }

 private:
  const std::shared_ptr<Session> session_;
};

}  // namespace

std::shared_ptr<MoveTarget> make_session_target(std::shared_ptr<Session> session) {
  return std::make_shared<SessionTarget>(std::move(session));
}

}  // namespace stagelink::moriio
