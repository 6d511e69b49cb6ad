#include "wire/auth.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include <sodium.h>

#include "base/bytes.h"
#include "wire/field_reader.h"
#include "wire/frame.h"

namespace stagelink::wire {
namespace {

constexpr std::string_view kKeyLabel = "stagelink secret 1";
constexpr size_t kLabelBytes = 24;
constexpr size_t kKeyBytes = crypto_auth_hmacsha256_BYTES;

static_assert(std::tuple_size_v<Proof> == crypto_auth_hmacsha256_BYTES);
static_assert(sizeof(Challenge) == kChallengeBytes);
static_assert(sizeof(Proof) == kProofBytes);

// HMAC-SHA-256 of a message in parts; its state, which depends on the key, is wiped.
class Hmac {
 public:
  explicit Hmac(std::span<const std::byte> key) noexcept {
    crypto_auth_hmacsha256_init(&state_, bytes(key), key.size());
  }
  Hmac(const Hmac&) = delete;
  Hmac& operator=(const Hmac&) = delete;
  ~Hmac() { sodium_memzero(&state_, sizeof state_); }

  void add(std::span<const std::byte> part) noexcept {
    crypto_auth_hmacsha256_update(&state_, bytes(part), part.size());
  }
  void finish(std::byte* out) noexcept {
    crypto_auth_hmacsha256_final(&state_, reinterpret_cast<unsigned char*>(out));
  }

 private:
  static const unsigned char* bytes(std::span<const std::byte> of) noexcept {
    return reinterpret_cast<const unsigned char*>(of.data());
  }
  crypto_auth_hmacsha256_state state_;
};

std::span<const std::byte> bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span(text));
}

std::array<std::byte, kLabelBytes> label_of(Side side) noexcept {
  const auto text = bytes_of(side == Side::kOwner ? std::string_view("stagelink owner 1")
                                                  : std::string_view("stagelink initiator 1"));
  std::array<std::byte, kLabelBytes> label{};
  std::copy(text.begin(), text.end(), label.begin());
  return label;
}

template <size_t kBytes>
void get_array(FieldReader& reader, const char* field, std::array<std::byte, kBytes>& out) {
  const auto bytes = reader.get_bytes(field, kBytes);
  std::copy(bytes.begin(), bytes.end(), out.begin());
}

}  // namespace

std::vector<std::byte> encode(const Challenge& challenge) {
  ByteWriter out;
  out.put_bytes(challenge.nonce);
  out.put_bytes(challenge.proof);
  return out.take();
}

std::vector<std::byte> encode_proof(const Proof& proof) { return {proof.begin(), proof.end()}; }

Result<Challenge> decode_challenge(std::span<const std::byte> in) {
  FieldReader reader("challenge", in);
  Challenge challenge;
  get_array(reader, "nonce", challenge.nonce);
  get_array(reader, "proof", challenge.proof);
  SL_TRY(reader.finish());
  return challenge;
}

Result<Proof> decode_proof(std::span<const std::byte> in) {
  FieldReader reader("proof", in);
  Proof proof{};
  get_array(reader, "proof", proof);
  SL_TRY(reader.finish());
  return proof;
}

void AuthKey::Free::operator()(std::byte* memory) const noexcept { sodium_free(memory); }

Result<AuthKey> AuthKey::derive(std::span<const std::byte> secret) {
  if (sodium_init() < 0) return Status(Reason::kSystem, "libsodium cannot be used here");
  Memory key(static_cast<std::byte*>(sodium_malloc(kKeyBytes)));
  if (key == nullptr) {
    return Status(Reason::kLimit, "no protected memory for the key of the secret");
  }
  Hmac hmac(bytes_of(kKeyLabel));
  hmac.add(secret);
  hmac.finish(key.get());
  return AuthKey(std::move(key));
}

Proof AuthKey::prove(Side side, std::span<const std::byte> hello, const Nonce& owner_nonce) const {
  const auto hello_bytes = static_cast<uint32_t>(hello.size());
  Hmac hmac({key_.get(), kKeyBytes});
  hmac.add(label_of(side));
  hmac.add(std::as_bytes(std::span(&hello_bytes, 1)));
  hmac.add(hello);
  hmac.add(owner_nonce);
  Proof proof{};
  hmac.finish(proof.data());
  return proof;
}

bool AuthKey::verify(const Proof& proof, Side side, std::span<const std::byte> hello,
                     const Nonce& owner_nonce) const {
  const Proof expected = prove(side, hello, owner_nonce);
  return sodium_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

Nonce random_nonce() {
  Nonce nonce{};
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

}  // namespace stagelink::wire
