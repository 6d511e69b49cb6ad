#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "cli/replay/control_channel.h"
#include "cli/replay/halves/half_proof.h"
#include "stagelink/result.h"

// How the parents of two halves find each other. The prefill half listens at its --bind, the decode
// half connects to its --peer; whichever is there first waits for the other. Then, as JSON lines:
//
//   decode: hello (version, nonce)        prefill: challenge (nonce, proof)      only with
//   decode: proof                                                                a secret
//   decode: terms                         prefill: welcome, or refused (message)
//
// Terms are what both halves must agree on; the first that differs is named with both values. A
// guest that is refused, silent or from another host than --peer is closed, and the half goes on
// waiting.
namespace stagelink::cli::replay {

inline constexpr size_t kMaxHalfLineBytes = 256 << 10;

struct Meeting {
  Endpoint bind;
  Endpoint peer;
  Duration timeout = std::chrono::seconds(60);
  HalfProof proof;
  nlohmann::json terms;
};

// Errors: timed_out names the address and the last thing that went wrong; cancelled on Ctrl-C;
// already_exists (port_in_use), permission (authentication), incompatible, invalid_argument.
Result<ControlChannel> wait_for_decode(const Meeting& meeting);
Result<ControlChannel> go_to_prefill(const Meeting& meeting);

}  // namespace stagelink::cli::replay
