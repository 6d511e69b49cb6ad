#pragma once

#include <string>

#include "base/endpoint.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::engine {

// The address told to peers: option `advertise`, completed with the bound port if it has none, or
// the bound address. Errors: invalid_argument, naming the option, if that would be a wildcard.
Result<std::string> advertised_address(const EngineOptions& options, const Endpoint& bound);

}  // namespace stagelink::engine
