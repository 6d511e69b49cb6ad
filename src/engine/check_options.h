#pragma once

#include <string>

#include "base/endpoint.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::engine {

// What the option table cannot check: options that depend on each other, and those of an
// EngineOptions that was filled by hand. Errors name the option and its value.
Status check_options(const EngineOptions& options);

// The address told to peers: `advertise`, completed with the bound port if it has none, or the
// bound one. Never a wildcard.
Result<std::string> advertised_address(const EngineOptions& options, const Endpoint& bound);

}  // namespace stagelink::engine
