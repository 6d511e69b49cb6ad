#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "stagelink/result.h"
#include "wire/hello.h"

// How both sides of a connection prove that they hold one secret, without telling it:
//
//   initiator: hello, with a nonce         owner: challenge (its nonce, its proof)
//   initiator: proof                       owner: welcome or refuse
//
//   Challenge                              Proof
//   offset  bytes  field                   offset  bytes  field
//        0     32  nonce of the owner           0     32  proof of the initiator
//       32     32  proof of the owner
//
//   key    HMAC-SHA-256("stagelink secret 1", all bytes of the secret)
//   proof  HMAC-SHA-256(key, label, u32 length of the hello, the hello as sent, owner's nonce)
//
// The label says whose proof it is ("stagelink owner 1" or "stagelink initiator 1", 24 bytes,
// padded with zeros), so that no proof can be sent back. The hello holds the initiator's nonce, and
// all that it asks for: changed on its way, it fails, as does whatever was recorded from another
// handshake. The secret must be random: an owner gives a proof to whoever says hello, and a secret
// that can be guessed can be tried against it.
namespace stagelink::wire {

using Proof = std::array<std::byte, 32>;
enum class Side : uint8_t { kInitiator, kOwner };

struct Challenge {
  Nonce nonce{};
  Proof proof{};
  friend bool operator==(const Challenge&, const Challenge&) = default;
};

std::vector<std::byte> encode(const Challenge& challenge);
std::vector<std::byte> encode_proof(const Proof& proof);
// Errors: corrupt (frame).
Result<Challenge> decode_challenge(std::span<const std::byte> in);
Result<Proof> decode_proof(std::span<const std::byte> in);

// What is derived from a secret. It lies in memory that no core dump holds, locked as far as the
// process may lock any, and is wiped.
//
// Thread-safety: immutable.
class AuthKey {
 public:
  // Errors: limit, if there is no memory that can be protected.
  static Result<AuthKey> derive(std::span<const std::byte> secret);

  // `hello`: the payload of the hello frame as it was sent.
  Proof prove(Side side, std::span<const std::byte> hello, const Nonce& owner_nonce) const;
  // Takes equally long whatever is wrong.
  bool verify(const Proof& proof, Side side, std::span<const std::byte> hello,
              const Nonce& owner_nonce) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  using Memory = std::unique_ptr<std::byte[], Free>;

  explicit AuthKey(Memory key) noexcept : key_(std::move(key)) {}

  Memory key_;
};

// From the library's generator; for one handshake.
Nonce random_nonce();

}  // namespace stagelink::wire
