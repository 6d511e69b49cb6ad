#pragma once

#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "cli/doctor/peer/http_probe.h"
#include "stagelink/result.h"
#include "wire/auth.h"
#include "wire/hello.h"

namespace stagelink::cli::doctor {

// Who answers at an address.
enum class Answer : uint8_t {
  kEngine,   // One of ours: a welcome, or a refusal that says why.
  kZmq,      // ZeroMQ's greeting.
  kOther,    // Something else.
  kSilent,   // The connection stands, and nothing comes.
  kUntried,  // It was not spoken to.
};

struct ZmqGreeting {
  int major = 0;
  int minor = 0;
  std::string mechanism;  // "NULL", "CURVE"
};

struct PeerFacts {
  Status connected;   // All below holds only if this is ok.
  std::string local;  // Our end, numeric.
  std::string remote;
  int path_mtu = 0;  // As far as the kernel knows it; 0: unknown.
  Duration connect_time{};

  Answer answer = Answer::kUntried;
  std::string said;       // Of kOther: its first line.
  bool prompted = false;  // It said it after our hello, not before: HTTP is worth a try.
  HttpFacts http;
  ZmqGreeting zmq;
  // Of an engine.
  Status greeted;                        // Why it, or we, refuse.
  std::optional<wire::Version> version;  // Of its protocol, if it told it.
  std::optional<wire::Welcome> welcome;
  Duration round_trip{};  // The median of pings; 0: none.
};

struct ProbeOptions {
  Duration timeout = std::chrono::seconds(5);  // For each step.
  const wire::AuthKey* key = nullptr;          // Null: no secret.
  bool speak = true;                           // Else only connect.
};

// Connects, listens to who speaks first, says our hello if nobody does, pings an engine and leaves
// in good order.
PeerFacts probe_peer(const Endpoint& endpoint, const ProbeOptions& options);

// The version in a welcome or in a refusal by it, whatever that version's layout is.
std::optional<wire::Version> version_in_refusal(std::string_view message);

}  // namespace stagelink::cli::doctor
