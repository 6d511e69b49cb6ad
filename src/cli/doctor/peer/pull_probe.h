#pragma once

#include "base/deadline.h"
#include "base/endpoint.h"
#include "cli/doctor/finding.h"
#include "connector/pull/options.h"

namespace stagelink::cli::doctor {

// Asks a sender of pulls for a payload that it does not have, as a receiver with `options` would:
// over its control port, and with a session to the engine that holds its pool. Says what of it
// fails.
Finding ask_pull_sender(const std::string& who, const Endpoint& sender, pull::PullOptions options,
                        Duration timeout);

}  // namespace stagelink::cli::doctor
