#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/secret_file.h"
#include "stagelink/result.h"

namespace stagelink::zmq {

inline constexpr size_t kCurveKeyBytes = 32;
using CurveKey = std::array<std::byte, kCurveKeyBytes>;

struct CurvePair {
  CurveKey public_key{};
  CurveKey secret_key{};
};

// The keys of ZeroMQ's CURVE (RFC 26) that everybody who holds one secret derives: one pair for who
// listens, one for who connects. No public key is ever told, so that who knows one knows the
// secret.
//
//   seed   HMAC-SHA-256(HMAC-SHA-256("stagelink curve 1", secret), "listener" or "caller")
//   pair   crypto_box_seed_keypair(seed)
//
// Thread-safety: immutable. Wiped when it goes.
class CurveKeys {
 public:
  static std::shared_ptr<const CurveKeys> derive(const Secret& secret);
  // Errors: those of read_secret_file.
  static Result<std::shared_ptr<const CurveKeys>> from_file(const std::string& path);
  ~CurveKeys();
  CurveKeys(const CurveKeys&) = delete;
  CurveKeys& operator=(const CurveKeys&) = delete;

  const CurvePair& listener() const noexcept { return listener_; }
  const CurvePair& caller() const noexcept { return caller_; }

 private:
  CurveKeys() = default;
  CurvePair listener_;
  CurvePair caller_;
};

}  // namespace stagelink::zmq
