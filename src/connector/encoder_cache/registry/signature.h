#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/secret_file.h"
#include "stagelink/region.h"
#include "stagelink/result.h"

// How a request shows that its sender holds the registry's secret, in the header
// "Stagelink-Signature":
//
//   1 <unix milliseconds> <nonce, 32 hex digits> <proof, 64 hex digits>
//
//   key    HMAC-SHA-256("stagelink registry 1", secret)
//   proof  HMAC-SHA-256(key, "<registry's instance>\n<method>\n<target>\n<ms> <nonce>\n<body>")
//
// The instance makes a request worthless at any other registry, and at this one after a restart;
// the time, after a short while; the nonce, a second time.
namespace stagelink::encoder_cache {

struct SignedParts {
  std::string_view method;
  std::string_view target;
  std::string_view body;
};

// The key derived from a secret.
//
// Thread-safety: immutable.
class SigningKey {
 public:
  // Errors: those of read_secret_file; limit, if there is no memory that can be protected.
  static Result<std::shared_ptr<const SigningKey>> from_file(
      const std::string& path, std::string_view option = "secret_file");
  static Result<std::shared_ptr<const SigningKey>> derive(const Secret& secret);
  ~SigningKey();
  SigningKey(const SigningKey&) = delete;
  SigningKey& operator=(const SigningKey&) = delete;

  // The value of the header, with a nonce of its own.
  std::string sign(const InstanceId& registry, const SignedParts& parts) const;
  // For tests: at a time and with a nonce that are given.
  std::string sign_at(const InstanceId& registry, const SignedParts& parts, int64_t unix_ms,
                      const InstanceId& nonce) const;

 private:
  friend class SignatureCheck;
  explicit SigningKey(std::byte* key) noexcept : key_(key) {}
  std::string proof(const InstanceId& registry, const SignedParts& parts,
                    std::string_view time_and_nonce) const;
  std::byte* const key_;  // In protected memory.
};

// The side that asks for signatures.
//
// Thread-safety: used by one thread.
class SignatureCheck {
 public:
  SignatureCheck(std::shared_ptr<const SigningKey> key, const InstanceId& registry,
                 size_t max_nonces = 65'536) noexcept
      : key_(std::move(key)), registry_(registry), max_nonces_(max_nonces) {}

  // `once`: a nonce that came before is refused. Errors: permission (authentication) says what is
  // wrong and, of a clock, by how much; busy, if more came lately than are remembered.
  Status check(std::string_view header, const SignedParts& parts, bool once, int64_t unix_ms);

  static constexpr int64_t kWindowMs = 30'000;  // To both sides.

 private:
  const std::shared_ptr<const SigningKey> key_;
  const InstanceId registry_;
  const size_t max_nonces_;
  std::unordered_set<std::string> nonces_;
  std::deque<std::pair<int64_t, std::string>> by_time_;  // Until when each is remembered.
};

int64_t unix_ms_now() noexcept;

}  // namespace stagelink::encoder_cache
