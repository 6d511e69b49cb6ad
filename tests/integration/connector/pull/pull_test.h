#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "integration/connector/pull/pull_peer.h"
#include "integration/support/engine_test.h"

namespace stagelink::test {

// Connectors on the loopback address with small pools, in the test's runtime directory.
class PullTest : public EngineTest {
 protected:
  std::string json(std::string_view keys) const { return pull_json(runtime_dir(), keys); }
  std::unique_ptr<pull::PullConnector> connector(std::string_view keys) const {
    return must(pull::PullConnector::create(must(pull_options(json(keys)))));
  }
  static Result<pull::Received> get(pull::PullConnector& receiver, std::string_view key,
                                    const pull::PullMetadata& sender, Duration wait = 0s) {
    return receiver.get({.key = key, .metadata = &sender, .into = {}}, {.wait = wait});
  }
};

inline constexpr uint64_t kPullBytes = 256 << 10;
inline constexpr std::string_view kReceiverRole = R"("role": "receiver")";

inline pull::GetRequest from(const pull::PullMetadata& metadata, std::string_view key) {
  return {.key = key, .metadata = &metadata, .into = {}};
}

class PullOwnershipTest : public PullTest {
 protected:
  // The claim's payload, read to its end.
  static Status read(pull::PullConnector& receiver, pull::Claim& claim, uint64_t seed) {
    const pull::Piece piece = must(receiver.allocate(claim.bytes(), 5s));
    const pull::ReadPart part{0, piece.bytes()};
    const pull::ClaimRead read{&claim, std::span(&part, 1)};
    SL_TRY(receiver.read_many(std::span(&read, 1)).front());
    if (!first_wrong(piece.bytes(), seed).has_value()) return {};
    return Status(Reason::kCorrupt, "other bytes");
  }
  static pull::Claim claim(pull::PullConnector& receiver, const pull::PullMetadata& metadata,
                           std::string_view key) {
    const pull::GetRequest request = from(metadata, key);
    return must(std::move(receiver.claim_many(std::span(&request, 1)).front()));
  }
};

}  // namespace stagelink::test
