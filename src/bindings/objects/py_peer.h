#pragma once

#include <utility>

#include <nanobind/nanobind.h>

#include "stagelink/peer.h"

namespace stagelink::bindings {

// A Peer as Python sees it: it keeps its engine alive.
//
// Thread-safety: used with the interpreter lock.
struct PyPeer {
  PyPeer(nanobind::object engine_, Peer peer_)
      : engine(std::move(engine_)), peer(std::move(peer_)) {}

  nanobind::object engine;
  Peer peer;
};

// The value stagelink.BY_ADDRESS.
struct ByAddress {};

}  // namespace stagelink::bindings
