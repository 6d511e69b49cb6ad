#include "transport/selection.h"

#include "base/text.h"

namespace stagelink::transport {
namespace {

std::string why_not_shm(const RouteFacts& facts) {
  if (!facts.shm_enabled) return "shm is not among the engine's transports";
  if (!facts.same_host) return "the peer is reached over TCP";
  if (!facts.shareable) return "the memory was registered, not allocated by its engine";
  return "mapping failed: " + facts.mapping.to_string();
}

// Empty: nothing stands in the way of cma.
std::string why_not_cma(const RouteFacts& facts) {
  if (!facts.cma_enabled) return "cma is not among the engine's transports";
  if (!facts.same_host) return "the peer is reached over TCP";
  if (facts.secret) return "cma is off with a secret";
  if (!facts.cma.ok()) return "cma: " + std::string(facts.cma.message());
  return "";
}

}  // namespace

Route select_route(const RouteFacts& facts) {
  if (facts.shm_enabled && facts.same_host && facts.shareable && facts.mapping.ok()) {
    return {TransportKind::kShm, "mapped: same host, fd received, nonce read"};
  }
  const std::string not_shm = why_not_shm(facts);
  const std::string not_cma = why_not_cma(facts);
  if (not_cma.empty() && (!facts.stream || facts.cma_min_run == 0)) {
    return {TransportKind::kCma, not_shm};
  }
  if (not_cma.empty()) {
    return {TransportKind::kCma,
            not_shm + "; batches of runs below " + format_bytes(facts.cma_min_run) +
                " on average (cma_min_run) go by " + transport_name(*facts.stream),
            facts.stream};
  }
  const std::string why = not_cma.starts_with("the peer is") ? not_shm : not_shm + "; " + not_cma;
  if (facts.stream) return {facts.stream, why};
  return {std::nullopt, why + "; and neither unix nor tcp is there to carry a stream"};
}

TransportKind select_for_batch(const Route& route, const BatchShape& shape, uint64_t cma_min_run) {
  const bool is_short = shape.runs != 0 && shape.bytes / shape.runs < cma_min_run;
  return is_short ? route.short_runs.value_or(*route.kind) : *route.kind;
}

}  // namespace stagelink::transport
