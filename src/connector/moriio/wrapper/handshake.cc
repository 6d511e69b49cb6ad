#include "connector/moriio/wrapper/handshake.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "connector/zmq/port_shortage.h"

namespace stagelink::moriio {
namespace {

// The asking side of one handshake.
class Asker {
 public:
  Asker(const std::shared_ptr<zmq::Context>& context, const Endpoint& peer)
      : peer_(peer),
        dealer_(zmq::Dealer::connect(context, peer,
                                     {.max_frame_bytes = kMaxHandshakeBytes, .max_frames = 3})) {
    if (!dealer_.ok()) failure_ = dealer_.status();
  }

  bool done() const noexcept { return !failure_.ok() || (agent_ && layers_); }
  zmq::PollItem poll_item() {
    return {.socket = &*dealer_, .want_read = asked_, .want_write = !asked_};
  }

  // Sends the question if it has not been sent, takes what has come.
  void step() {
    const Deadline now = Deadline::in(Duration::zero());
    if (!asked_) {
      const zmq::FrameSpan frame = std::as_bytes(std::span(kGetMetadata));
      const Status sent = dealer_->send(std::span(&frame, 1), now);
      if (sent.reason() == Reason::kTimedOut) return;
      failure_ = sent;
      asked_ = true;
    }
    while (!done()) {
      auto frames = dealer_->receive(now);
      if (!frames.ok()) failure_ = frames.status();
      if (!frames.ok() || !frames->has_value()) return;
      take(**frames);
    }
  }

  Result<PeerMetadata> result() && {
    if (!failure_.ok()) {
      return Status(failure_.reason(),
                    fmt::format("handshake with {}: {}", peer_.to_string(), failure_.message()));
    }
    if (!agent_ || !layers_) {
      if (!asked_) SL_TRY(zmq::local_port_shortage(peer_));
      return Status(Reason::kConnectTimeout,
                    fmt::format("handshake with {}: no {} in time", peer_.to_string(),
                                !asked_ ? "connection" : "answer"));
    }
    return PeerMetadata{*std::move(agent_), *std::move(layers_)};
  }

 private:
  void take(const zmq::Frames& frames) {
    if (frames.size() != 2 || !frames[0].empty()) {
      failure_ = Status(Reason::kFrame, fmt::format("an answer of {} frames", frames.size()));
      return;
    }
    if (!agent_) {
      auto agent = decode_agent_metadata(frames[1]);
      if (agent.ok())
        agent_ = *std::move(agent);
      else
        failure_ = agent.status();
    } else {
      auto layers = decode_layer_map(frames[1]);
      if (layers.ok())
        layers_ = *std::move(layers);
      else
        failure_ = layers.status();
    }
  }

  const Endpoint peer_;
  Result<zmq::Dealer> dealer_;
  bool asked_ = false;
  Status failure_;
  std::optional<AgentMetadata> agent_;
  std::optional<LayerMap> layers_;
};

}  // namespace

Result<std::unique_ptr<HandshakeServer>> HandshakeServer::start(
    std::shared_ptr<zmq::Context> context, const zmq::BindOptions& options,
    const PeerMetadata& metadata) {
  SL_ASSIGN(Bytes agent, encode(metadata.agent));
  SL_ASSIGN(Bytes layers, encode(metadata.layers));
  SL_ASSIGN(zmq::Router router,
            zmq::Router::bind(std::move(context), options, {.max_frame_bytes = 4096}));
  std::unique_ptr<HandshakeServer> server(new HandshakeServer(std::move(agent), std::move(layers)));
  SL_ASSIGN(server->listener_, zmq::Listener::start(std::move(router), "sl-handshake", *server));
  return server;
}

HandshakeServer::HandshakeServer(Bytes agent, Bytes layers) noexcept
    : agent_(std::move(agent)), layers_(std::move(layers)) {}

HandshakeServer::~HandshakeServer() = default;

std::vector<zmq::Frames> HandshakeServer::on_message(zmq::Frames frames) {
  // A REQ socket puts an empty frame before its question.
  if (frames.size() == 2 && frames.front().empty()) frames.erase(frames.begin());
  if (frames.size() != 1) {
    rejects_.count(Reject::kFrames, fmt::format("{} frames", frames.size()));
    return {};
  }
  const auto request = decode_handshake_request(frames.front());
  if (!request.ok()) {
    rejects_.count(Reject::kMalformed, request.status().message());
    return {};
  }
  if (*request != HandshakeRequest::kGetMetadata) return {};
  served_.fetch_add(1);
  return {{Bytes(), agent_}, {Bytes(), layers_}};
}

std::vector<Result<PeerMetadata>> fetch_metadata(const std::shared_ptr<zmq::Context>& context,
                                                 std::span<const Endpoint> peers,
                                                 Duration timeout) {
  const Deadline deadline = Deadline::in(timeout);
  std::vector<std::unique_ptr<Asker>> askers;
  for (const Endpoint& peer : peers) askers.push_back(std::make_unique<Asker>(context, peer));
  while (true) {
    std::vector<zmq::PollItem> items;
    for (const auto& asker : askers) {
      if (!asker->done()) asker->step();
      if (!asker->done()) items.push_back(asker->poll_item());
    }
    if (items.empty() || deadline.passed()) break;
    if (!zmq::poll(context->library(), items, deadline).ok()) break;
  }
  std::vector<Result<PeerMetadata>> results;
  for (const auto& asker : askers) results.push_back(std::move(*asker).result());
  return results;
}

}  // namespace stagelink::moriio
