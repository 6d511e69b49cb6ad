#include "connector/zmq/port_shortage.h"

#include "base/deadline.h"
#include "transport/blocking_frames.h"

namespace stagelink::zmq {

Status local_port_shortage(const Endpoint& peer) {
  const auto probe = transport::connect_tcp(peer.host, peer.port, Deadline::in(Duration::zero()));
  return probe.status().reason() == Reason::kNoPorts ? probe.status() : Status();
}

}  // namespace stagelink::zmq
