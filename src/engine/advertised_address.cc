#include "engine/advertised_address.h"

namespace stagelink::engine {
namespace {

Status bad(const char* option, const std::string& value, const char* expected) {
  return Status(Reason::kInvalidArgument,
                std::string("option ") + option + " = \"" + value + "\": " + expected);
}

}  // namespace

Result<std::string> advertised_address(const EngineOptions& options, const Endpoint& bound) {
  if (options.advertise.empty()) {
    if (!bound.wildcard()) return bound.to_string();
    return bad("bind", options.bind,
               "a wildcard cannot be told to peers; set advertise to an address they can reach");
  }
  auto whole = parse_endpoint(options.advertise);
  if (!whole.ok()) {  // A host alone: the port is the bound one.
    whole = parse_endpoint(options.advertise + ":" + std::to_string(bound.port));
  }
  if (!whole.ok()) return bad("advertise", options.advertise, "expected host, or host:port");
  if (whole->wildcard()) return bad("advertise", options.advertise, "must not be a wildcard");
  if (whole->port == 0) whole->port = bound.port;
  return whole->to_string();
}

}  // namespace stagelink::engine
