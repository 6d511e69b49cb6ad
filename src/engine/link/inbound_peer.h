#pragma once

#include <memory>

#include "engine/inbox.h"
#include "transport/frame_connection.h"
#include "wire/hello.h"

namespace stagelink::engine {

class EngineCore;

// The owner's side of a control connection: answers for our memory, reads the peer's ring.
//
// Thread-safety: progress loop only.
class InboundPeer final : public transport::FrameConnection::Owner {
 public:
  // Creates the peer page and sends the welcome with its fds.
  static Result<std::unique_ptr<InboundPeer>> create(EngineCore& core, UniqueFd fd,
                                                     const wire::Hello& hello);
  ~InboundPeer();

  Status on_frame(transport::FrameConnection& from, const wire::FrameHeader& header,
                  std::span<const std::byte> payload, std::vector<UniqueFd>& fds) override;
  void on_closed(transport::FrameConnection& connection, const Status& why) override;
  // Says goodbye as far as the socket takes it.
  void say_bye();
  InstanceId instance() const noexcept { return ring_->source(); }

 private:
  InboundPeer(EngineCore& core, std::shared_ptr<InboundRing> ring) noexcept;
  Status send_welcome(uint64_t page_nonce);
  Status answer_get_region(uint64_t request_id, std::span<const std::byte> payload);

  EngineCore& core_;
  const std::shared_ptr<InboundRing> ring_;
  std::unique_ptr<transport::FrameConnection> connection_;
};

}  // namespace stagelink::engine
