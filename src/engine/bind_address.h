#pragma once

#include "base/endpoint.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::engine {

// Where options `bind` and `interface` say that peers connect. `auto` is the first address of the
// interface, IPv4 before IPv6 and link-local ones last; without an interface, of the first one that
// is up and is not loopback, else loopback. Errors: invalid_argument names the interfaces there
// are.
Result<Endpoint> bind_address(const EngineOptions& options);

}  // namespace stagelink::engine
