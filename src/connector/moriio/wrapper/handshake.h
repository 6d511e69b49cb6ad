#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/endpoint.h"
#include "connector/moriio/messages/handshake.h"
#include "connector/moriio/wrapper/rejects.h"
#include "connector/zmq/listener.h"
#include "stagelink/result.h"

namespace stagelink::moriio {

// What a rank tells those who ask at its handshake port.
struct PeerMetadata {
  AgentMetadata agent;
  LayerMap layers;
};

// Answers every get_meta_msg with the two messages of one PeerMetadata. Other frames are counted
// and change nothing.
//
// Thread-safety: all methods may run at the same time.
class HandshakeServer final : public zmq::MessageHandler {
 public:
  // Errors: those of the encoders and of Router::bind.
  static Result<std::unique_ptr<HandshakeServer>> start(std::shared_ptr<zmq::Context> context,
                                                        const zmq::BindOptions& options,
                                                        const PeerMetadata& metadata);
  ~HandshakeServer();

  const Endpoint& endpoint() const noexcept { return listener_->endpoint(); }
  const RejectCounter& rejects() const noexcept { return rejects_; }
  uint64_t served() const noexcept { return served_.load(); }
  std::vector<zmq::Frames> on_message(zmq::Frames frames) override;

 private:
  HandshakeServer(Bytes agent, Bytes layers) noexcept;
  const Bytes agent_;
  const Bytes layers_;
  std::atomic<uint64_t> served_{0};
  RejectCounter rejects_{"moriio.handshake"};
  std::unique_ptr<zmq::Listener> listener_;
};

// Asks all of `peers` at the same time; the answers come in their order. A peer that does not
// answer, or wrongly, spoils its own answer and no other. Errors of one answer: timed_out
// (connect_timeout), corrupt.
std::vector<Result<PeerMetadata>> fetch_metadata(const std::shared_ptr<zmq::Context>& context,
                                                 std::span<const Endpoint> peers, Duration timeout);

}  // namespace stagelink::moriio
