#pragma once

#include <string>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "stagelink/status.h"

namespace stagelink::cli::doctor {

// Who answers to HTTP, as far as a registry of embeddings is concerned.
struct HttpFacts {
  int status = 0;         // Of a question for an embedding that there is not; 0: no HTTP.
  bool registry = false;  // It answers as a registry does.
  std::string instance;   // Of a registry of ours; empty: somebody else's, which asks no secret.
  Status lookup;          // Of ours: whether it lets the holder of this secret, or of none, ask.
};

// Asks over connections of its own, for at most `timeout` each.
HttpFacts probe_http(const Endpoint& endpoint, const std::string& secret_file, Duration timeout);

}  // namespace stagelink::cli::doctor
