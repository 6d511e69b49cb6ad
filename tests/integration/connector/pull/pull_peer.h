#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "connector/pull/pull_connector.h"
#include "integration/support/child_process.h"

namespace stagelink::test {

enum class PullCommand : uint8_t {
  kPut = 1,
  kPutBytes,
  kPutRanges,
  kCleanup,
  kGet,
  kGetMany,
  kClaim,
  kReadClaim,
  kFinishClaim,
  kHealth,
  kMetrics,
  kClose,
};

// What a get at the peer gave.
struct PeerGot {
  uint64_t bytes = 0;
  uint64_t generation = 0;
  bool right = false;  // All bytes are of the pattern that was expected.
};

// Options as a user writes them: JSON.
Result<pull::PullOptions> pull_options(std::string_view json);
// Around `keys`, what every test wants: loopback, a small pool, the test's runtime directory.
std::string pull_json(const std::string& runtime_dir, std::string_view keys);

// Another process with a connector of its own, driven step by step.
class PullPeer {
 public:
  explicit PullPeer(std::string_view json);

  ChildProcess& process() noexcept { return child_; }
  // As given by each of its puts.
  const pull::PullMetadata& address() const noexcept { return address_; }

  // The pattern of `seed`.
  Result<pull::PullMetadata> put(std::string_view key, uint64_t seed, uint64_t bytes,
                                 uint32_t readers = 1, int64_t ttl_ms = 0);
  // In place: `pieces` of equal size in as many private registrations, with gaps.
  Result<pull::PullMetadata> put_ranges(std::string_view key, uint64_t seed, uint64_t bytes,
                                        uint32_t pieces);
  Result<pull::PullMetadata> put_bytes(std::string_view key, std::span<const std::byte> bytes);
  bool cleanup(std::string_view key, uint64_t generation = 0);
  Result<PeerGot> get(std::string_view key, const pull::PullMetadata& sender, uint64_t seed,
                      Duration wait = Duration::zero());
  // One call for the keys "0", "1", ..., all of which have the same outcome.
  Status get_many(uint32_t keys, const pull::PullMetadata& sender, Duration wait);
  // The number of the claim.
  Result<uint32_t> claim(std::string_view key, const pull::PullMetadata& sender);
  Status read_claim(uint32_t claim, uint64_t seed);
  void finish_claim(uint32_t claim);
  pull::PullHealth health();
  std::string metrics_text();
  Status close(Duration timeout = std::chrono::seconds(5));

 private:
  Result<std::vector<std::byte>> ask(std::span<const std::byte> command);

  ChildProcess child_;
  pull::PullMetadata address_;
};

}  // namespace stagelink::test
