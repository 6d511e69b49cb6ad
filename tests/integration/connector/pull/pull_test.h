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

}  // namespace stagelink::test
