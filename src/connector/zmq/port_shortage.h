#pragma once

#include "base/endpoint.h"
#include "stagelink/result.h"

namespace stagelink::zmq {

// ZeroMQ connects in the background and does not say why it has no connection: this is asked where
// one was waited for in vain. Errors: limit (no_ports) where no local port is left for another
// connection to `peer`; OK where that is not why. Does not wait.
Status local_port_shortage(const Endpoint& peer);

}  // namespace stagelink::zmq
