#include "connector/encoder_cache/registry/signature.h"

#include <array>
#include <charconv>

#include <fmt/format.h>
#include <sodium.h>

#include "base/random.h"

namespace stagelink::encoder_cache {
namespace {

constexpr std::string_view kRegistryLabel = "stagelink registry 1";
constexpr size_t kNonceDigits = 32;
constexpr int64_t kLatestMs = int64_t{1} << 52;
constexpr size_t kProofDigits = 2 * crypto_auth_hmacsha256_BYTES;

// HMAC-SHA-256 in parts. Its state, which depends on the key, is wiped.
class RequestMac {
 public:
  RequestMac(const void* key, size_t size) noexcept {
    crypto_auth_hmacsha256_init(&state_, static_cast<const unsigned char*>(key), size);
  }
  RequestMac(const RequestMac&) = delete;
  RequestMac& operator=(const RequestMac&) = delete;
  ~RequestMac() { sodium_memzero(&state_, sizeof state_); }

  void add(std::string_view part) noexcept {
    crypto_auth_hmacsha256_update(&state_, reinterpret_cast<const unsigned char*>(part.data()),
                                  part.size());
  }
  void add_line(std::string_view part) noexcept {
    add(part);
    add("\n");
  }
  void finish(unsigned char* out) noexcept { crypto_auth_hmacsha256_final(&state_, out); }

 private:
  crypto_auth_hmacsha256_state state_;
};

Status not_signed(std::string message) {
  return Status(Reason::kAuthentication, std::move(message));
}

struct HeaderFields {
  int64_t unix_ms = 0;
  std::string_view time_and_nonce;  // As they are signed.
  std::string_view nonce;
  std::string_view proof;
};

Result<HeaderFields> split_header(std::string_view header) {
  const Status malformed =
      not_signed("the header Stagelink-Signature is not \"1 TIME NONCE PROOF\"");
  if (!header.starts_with("1 ")) return malformed;
  header.remove_prefix(2);
  HeaderFields fields;
  const auto [end, error] =
      std::from_chars(header.data(), header.data() + header.size(), fields.unix_ms);
  const auto time_size = static_cast<size_t>(end - header.data());
  if (error != std::errc() || fields.unix_ms < 0 || fields.unix_ms > kLatestMs ||
      header.size() != time_size + 1 + kNonceDigits + 1 + kProofDigits ||
      header[time_size] != ' ' || header[time_size + 1 + kNonceDigits] != ' ') {
    return malformed;
  }
  fields.time_and_nonce = header.substr(0, time_size + 1 + kNonceDigits);
  fields.nonce = header.substr(time_size + 1, kNonceDigits);
  fields.proof = header.substr(time_size + 1 + kNonceDigits + 1);
  return fields;
}

}  // namespace

int64_t unix_ms_now() noexcept {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Result<std::shared_ptr<const SigningKey>> SigningKey::derive(const Secret& secret) {
  if (sodium_init() < 0) return Status(Reason::kSystem, "libsodium cannot be used here");
  auto* const memory = static_cast<std::byte*>(sodium_malloc(crypto_auth_hmacsha256_BYTES));
  if (memory == nullptr) {
    return Status(Reason::kLimit, "no protected memory for the key of the secret");
  }
  RequestMac mac(kRegistryLabel.data(), kRegistryLabel.size());
  mac.add({reinterpret_cast<const char*>(secret.bytes().data()), secret.bytes().size()});
  mac.finish(reinterpret_cast<unsigned char*>(memory));
  return std::shared_ptr<const SigningKey>(new SigningKey(memory));
}

Result<std::shared_ptr<const SigningKey>> SigningKey::from_file(const std::string& path,
                                                                std::string_view option) {
  SL_ASSIGN(const Secret secret, read_secret_file(path, kMinSecretBytes, option));
  return derive(secret);
}

SigningKey::~SigningKey() { sodium_free(key_); }

std::string SigningKey::proof(const InstanceId& registry, const SignedParts& parts,
                              std::string_view time_and_nonce) const {
  RequestMac mac(key_, crypto_auth_hmacsha256_BYTES);
  mac.add_line(registry.to_string());
  mac.add_line(parts.method);
  mac.add_line(parts.target);
  mac.add_line(time_and_nonce);
  mac.add(parts.body);
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> digest;
  mac.finish(digest.data());
  std::string hex(kProofDigits + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), digest.data(), digest.size());
  hex.pop_back();
  return hex;
}

std::string SigningKey::sign(const InstanceId& registry, const SignedParts& parts) const {
  return sign_at(registry, parts, unix_ms_now(), random_instance_id());
}

std::string SigningKey::sign_at(const InstanceId& registry, const SignedParts& parts,
                                int64_t unix_ms, const InstanceId& nonce) const {
  const std::string time_and_nonce = fmt::format("{} {}", unix_ms, nonce.to_string());
  return fmt::format("1 {} {}", time_and_nonce, proof(registry, parts, time_and_nonce));
}

Status SignatureCheck::check(std::string_view header, const SignedParts& parts, bool once,
                             int64_t unix_ms) {
  if (header.empty()) {
    return not_signed("this registry has a secret, and the request is not signed");
  }
  SL_ASSIGN(const HeaderFields fields, split_header(header));
  const std::string wanted = key_->proof(registry_, parts, fields.time_and_nonce);
  if (sodium_memcmp(wanted.data(), fields.proof.data(), kProofDigits) != 0) {
    return not_signed(
        "the signature does not fit: another secret, or made for another registry or before its "
        "restart");
  }
  // Signed, so its time and nonce are of somebody who holds the secret.
  if (fields.unix_ms < unix_ms - kWindowMs || fields.unix_ms > unix_ms + kWindowMs) {
    return not_signed(
        fmt::format("the request's time differs from that of the registry by {} ms; "
                    "{} may be: set the clocks",
                    fields.unix_ms - unix_ms, kWindowMs));
  }
  if (!once) return {};
  while (!by_time_.empty() && by_time_.front().first < unix_ms) {
    nonces_.erase(by_time_.front().second);
    by_time_.pop_front();
  }
  if (nonces_.size() >= max_nonces_) {
    return Status(Reason::kBusy, "more signed requests came lately than are remembered");
  }
  const auto [at, is_new] = nonces_.emplace(fields.nonce);
  if (!is_new) return not_signed("this signed request came before");
  by_time_.emplace_back(unix_ms + 2 * kWindowMs, *at);
  return {};
}

}  // namespace stagelink::encoder_cache
