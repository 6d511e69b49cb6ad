#include "transport/selection.h"

namespace stagelink::transport {
namespace {

std::string why_not_shm(const RouteFacts& facts) {
  if (!facts.shm_enabled) return "shm is not among the engine's transports";
  if (!facts.same_host) return "the peer is on another host";
  if (!facts.shareable) return "the memory was registered, not allocated by its engine";
  return "mapping failed: " + facts.mapping.to_string();
}

}  // namespace

Route select_route(const RouteFacts& facts) {
  if (facts.shm_enabled && facts.same_host && facts.shareable && facts.mapping.ok()) {
    return {TransportKind::kShm, "mapped: same host, fd received, nonce read"};
  }
  const std::string why = why_not_shm(facts);
  if (facts.stream_enabled && facts.same_host) return {TransportKind::kStream, why};
  return {std::nullopt,
          why + (facts.stream_enabled ? "" : "; and unix is not among the engine's transports")};
}

}  // namespace stagelink::transport
