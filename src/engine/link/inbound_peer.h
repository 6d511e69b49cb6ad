#pragma once

#include <memory>

#include "engine/inbox.h"
#include "engine/link/acceptor.h"
#include "transport/frame_connection.h"
#include "wire/hello.h"

namespace stagelink::engine {

class EngineCore;

// The owner's side of a control connection: answers for our memory, reads the peer's ring. Over TCP
// the ring is ours alone, and is filled from the peer's notify frames.
//
// Thread-safety: progress loop only.
class InboundPeer final : public transport::FrameConnection::Owner {
 public:
  // Creates the peer page and sends the welcome, on a UNIX socket with its fds.
  static Result<std::unique_ptr<InboundPeer>> create(EngineCore& core, UniqueFd fd, Carrier carrier,
                                                     const wire::Hello& hello);
  ~InboundPeer();

  Status on_frame(transport::FrameConnection& from, const wire::FrameHeader& header,
                  std::span<const std::byte> payload, std::vector<UniqueFd>& fds) override;
  void on_closed(transport::FrameConnection& connection, const Status& why) override;
  // Says goodbye as far as the socket takes it.
  void say_bye();
  InstanceId instance() const noexcept { return ring_->source(); }

 private:
  InboundPeer(EngineCore& core, Carrier carrier, std::shared_ptr<InboundRing> ring) noexcept;
  Status send_welcome(const wire::Hello& hello, uint64_t page_nonce);
  Result<std::vector<UniqueFd>> fds_for_welcome() const;
  Status take_notify(std::span<const std::byte> payload);
  // Progress loop, after notifications of this peer were taken.
  void acknowledge();
  void acknowledge_when_taken();
  Status answer_get_region(uint64_t request_id, std::span<const std::byte> payload);

  EngineCore& core_;
  const Carrier carrier_;
  const std::shared_ptr<InboundRing> ring_;
  // Over TCP only.
  transport::NotifyProducer producer_;
  uint64_t acknowledged_ = 0;
  std::shared_ptr<InboundPeer*> self_;  // Null inside once this is gone.
  std::unique_ptr<transport::FrameConnection> connection_;
};

}  // namespace stagelink::engine
