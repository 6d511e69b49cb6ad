#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "engine/link/handshake.h"
#include "stagelink/result.h"
#include "transport/fault/fault_posted_transport.h"
#include "transport/stream/stream_channel.h"
#include "transport/stream/stream_server.h"
#include "transport/transport.h"
#include "wire/hello.h"

// How the engine uses the stream transport: the channels to its peers, and the server for them.
namespace stagelink::engine {

class EngineCore;
class PeerState;

// Makes a channel of a data connection and its welcome. The peer is told when it is lost
// (drop_channel()); the transport that is returned closes the channel when its last user lets go.
// Errors: corrupt (frame), if what came with the welcome is not what it says.
Result<std::shared_ptr<transport::PostedTransport>> open_stream_link(
    const std::shared_ptr<PeerState>& peer, UniqueFd fd, Greeted greeted, const Deadline& deadline);

// What an injected cut does: it ends the peer, as a broken connection does.
std::function<void(const Status&)> cutter(const std::shared_ptr<PeerState>& peer);

// Both ends of all data connections of one engine.
//
// Thread-safety: progress loop only.
class StreamHost {
 public:
  explicit StreamHost(EngineCore& core);

  // Whether a data connection of this peer would be served. Errors: limit.
  Status check_room(InstanceId peer) const;
  // A peer's data connection, after its hello: answers it and serves.
  void serve(UniqueFd fd, const wire::Hello& hello);
  // The peer has gone.
  void drop(InstanceId peer);
  // Own channels: ticked while they have requests. The faults around them: until they are gone.
  void add(std::weak_ptr<transport::StreamChannel> channel);
  void on_busy(const std::shared_ptr<transport::StreamChannel>& channel);
  void add(std::weak_ptr<transport::FaultPostedTransport> faulty);
  // How long until it must be called again.
  Duration tick();
  void close();

 private:
  EngineCore& core_;
  std::unique_ptr<transport::StreamServer> server_;
  std::vector<std::weak_ptr<transport::StreamChannel>> channels_;
  std::vector<std::shared_ptr<transport::StreamChannel>> busy_;
  std::vector<std::shared_ptr<transport::StreamChannel>> ticked_;  // Scratch.
  std::vector<std::weak_ptr<transport::FaultPostedTransport>> faulty_;
};

}  // namespace stagelink::engine
