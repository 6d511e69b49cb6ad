#include "connector/zmq/curve_keys.h"

#include <string_view>

#include <sodium.h>

namespace stagelink::zmq {
namespace {

using Digest = std::array<unsigned char, crypto_auth_hmacsha256_BYTES>;

static_assert(crypto_box_PUBLICKEYBYTES == kCurveKeyBytes);
static_assert(crypto_box_SECRETKEYBYTES == kCurveKeyBytes);
static_assert(crypto_box_SEEDBYTES == crypto_auth_hmacsha256_BYTES);

Digest keyed_digest(std::span<const unsigned char> key, std::span<const std::byte> message) {
  Digest digest;
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key.data(), key.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(message.data()),
                                message.size());
  crypto_auth_hmacsha256_final(&state, digest.data());
  sodium_memzero(&state, sizeof state);
  return digest;
}

std::span<const unsigned char> as_key(std::string_view text) {
  return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

void make_pair(const Digest& base, std::string_view who, CurvePair& pair) {
  Digest seed = keyed_digest(base, std::as_bytes(std::span(who)));
  crypto_box_seed_keypair(reinterpret_cast<unsigned char*>(pair.public_key.data()),
                          reinterpret_cast<unsigned char*>(pair.secret_key.data()), seed.data());
  sodium_memzero(seed.data(), seed.size());
}

}  // namespace

std::shared_ptr<const CurveKeys> CurveKeys::derive(const Secret& secret) {
  std::shared_ptr<CurveKeys> keys(new CurveKeys());
  Digest base = keyed_digest(as_key("stagelink curve 1"), secret.bytes());
  make_pair(base, "listener", keys->listener_);
  make_pair(base, "caller", keys->caller_);
  sodium_memzero(base.data(), base.size());
  return keys;
}

Result<std::shared_ptr<const CurveKeys>> CurveKeys::from_file(const std::string& path) {
  SL_ASSIGN(const Secret secret, read_secret_file(path));
  return derive(secret);
}

CurveKeys::~CurveKeys() {
  sodium_memzero(&listener_, sizeof listener_);
  sodium_memzero(&caller_, sizeof caller_);
}

}  // namespace stagelink::zmq
