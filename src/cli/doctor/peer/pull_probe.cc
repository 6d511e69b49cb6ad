#include "cli/doctor/peer/pull_probe.h"

#include <algorithm>

#include <fmt/format.h>

#include "connector/pull/pull_connector.h"

namespace stagelink::cli::doctor {
namespace {

constexpr std::string_view kNobodysKey = "stagelink-doctor@0_0";
constexpr uint64_t kSmallPool = 1 << 20;

// A not_found is the answer of a sender that was reached in every way.
Status look_once(const Endpoint& sender, const pull::PullOptions& options, Duration timeout) {
  SL_ASSIGN(const auto receiver, pull::PullConnector::create(options));
  pull::PullMetadata place;
  place.source_host = sender.host;
  place.source_port = sender.port;
  const pull::GetRequest request{.key = kNobodysKey, .metadata = &place, .into = {}};
  pull::GetTerms terms;
  terms.timeout = timeout;
  return receiver->get(request, terms).status();
}

std::string remedy_for(const Status& status) {
  switch (status.code()) {
    case Code::kIncompatible:
      return "Install one version of Stagelink on both sides; compat_030: true for a sender of "
             "vLLM-Omni 0.30.";
    case Code::kPermission: return "Give both sides copies of one secret_file, or neither.";
    default:
      return "Is its control port (zmq_port) reachable, and its engine's (rpc_port), too? Do both "
             "sides allow one common transport (protocol)? docs/operations.md has a line for each "
             "reason.";
  }
}

}  // namespace

Finding ask_pull_sender(const std::string& who, const Endpoint& sender, pull::PullOptions options,
                        Duration timeout) {
  options.role = pull::Role::kReceiver;
  options.zmq_port = 0;
  options.rpc_port = 0;
  options.memory_pool_size = kSmallPool;
  options.ask_timeout = std::max(options.ask_timeout, timeout);
  const Status status = look_once(sender, options, timeout);
  if (status.ok() || status.reason() == Reason::kNotFound) {
    return fine(who + ": a sender of pulls, which answers; its pool can be reached");
  }
  return {Level::kError, status.code() == Code::kIncompatible ? "peer_version" : "peer_pull",
          fmt::format("{}: a get from there would fail: {}", who, status.to_string()),
          "Receivers of this pipeline would fail in the same way.", remedy_for(status)};
}

}  // namespace stagelink::cli::doctor
