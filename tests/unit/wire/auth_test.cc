#include "wire/auth.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "unit/wire/golden.h"
#include "wire/frame.h"

namespace stagelink::wire {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

AuthKey key_of(std::string_view secret) { return *AuthKey::derive(bytes_of(secret)); }

Nonce counting_nonce(int first) {
  Nonce nonce{};
  for (size_t i = 0; i < nonce.size(); ++i) {
    nonce[i] = static_cast<std::byte>(first + static_cast<int>(i));
  }
  return nonce;
}

// A handshake whose values are written out.
struct Sample {
  AuthKey key = key_of("0123456789abcdef0123456789abcdef");
  std::vector<std::byte> hello = bytes_of("the bytes of a hello, as they were sent");
  Nonce nonce = counting_nonce(1);
};

// Checked against another implementation: Python's hmac, by the formula in wire/auth.h.
TEST(AuthTest, ProofsHaveTheirGoldenBytes) {
  const Sample sample;
  const Proof owner = sample.key.prove(Side::kOwner, sample.hello, sample.nonce);
  const Proof initiator = sample.key.prove(Side::kInitiator, sample.hello, sample.nonce);
  expect_golden("challenge.bin", encode(Challenge{sample.nonce, owner}));
  expect_golden("proof.bin", encode_proof(initiator));
}

TEST(AuthTest, AProofOfTheSameSecretIsVerified) {
  const Sample sample;
  const AuthKey other = key_of("0123456789abcdef0123456789abcdef");
  for (const Side side : {Side::kOwner, Side::kInitiator}) {
    const Proof proof = sample.key.prove(side, sample.hello, sample.nonce);
    EXPECT_TRUE(other.verify(proof, side, sample.hello, sample.nonce));
  }
}

TEST(AuthTest, AProofOfAnotherSecretIsNot) {
  const Sample sample;
  for (const auto* secret :
       {"0123456789abcdef0123456789abcdeg", "0123456789abcdef0123456789abcdef\n"}) {
    const Proof proof = key_of(secret).prove(Side::kOwner, sample.hello, sample.nonce);
    EXPECT_FALSE(sample.key.verify(proof, Side::kOwner, sample.hello, sample.nonce));
  }
}

TEST(AuthTest, AProofThatIsSentBackIsNot) {
  const Sample sample;
  const Proof owner = sample.key.prove(Side::kOwner, sample.hello, sample.nonce);
  EXPECT_FALSE(sample.key.verify(owner, Side::kInitiator, sample.hello, sample.nonce));
  const Proof initiator = sample.key.prove(Side::kInitiator, sample.hello, sample.nonce);
  EXPECT_FALSE(sample.key.verify(initiator, Side::kOwner, sample.hello, sample.nonce));
}

TEST(AuthTest, AProofOfAnotherHandshakeIsNot) {
  const Sample sample;
  const Proof proof = sample.key.prove(Side::kInitiator, sample.hello, sample.nonce);
  EXPECT_FALSE(sample.key.verify(proof, Side::kInitiator, sample.hello, counting_nonce(2)));
}

TEST(AuthTest, EveryBitOfTheHelloTheNonceAndTheProofCounts) {
  const Sample sample;
  const Proof proof = sample.key.prove(Side::kInitiator, sample.hello, sample.nonce);
  const auto flip = [](std::byte& byte, size_t bit) { byte ^= std::byte{1} << bit % 8; };
  for (size_t bit = 0; bit < sample.hello.size() * 8; ++bit) {
    auto hello = sample.hello;
    flip(hello[bit / 8], bit);
    EXPECT_FALSE(sample.key.verify(proof, Side::kInitiator, hello, sample.nonce)) << bit;
  }
  for (size_t bit = 0; bit < sample.nonce.size() * 8; ++bit) {
    Nonce nonce = sample.nonce;
    flip(nonce[bit / 8], bit);
    EXPECT_FALSE(sample.key.verify(proof, Side::kInitiator, sample.hello, nonce)) << bit;
    Proof other = proof;
    flip(other[bit / 8], bit);
    EXPECT_FALSE(sample.key.verify(other, Side::kInitiator, sample.hello, sample.nonce)) << bit;
  }
}

// The hello's length stands before it: no byte can move from the hello into the nonce.
TEST(AuthTest, ALongerHelloIsAnotherOne) {
  const Sample sample;
  const Proof proof = sample.key.prove(Side::kInitiator, sample.hello, sample.nonce);
  auto longer = sample.hello;
  longer.push_back(sample.nonce[0]);
  EXPECT_FALSE(sample.key.verify(proof, Side::kInitiator, longer, sample.nonce));
  EXPECT_FALSE(sample.key.verify(proof, Side::kInitiator,
                                 std::span(sample.hello).first(sample.hello.size() - 1),
                                 sample.nonce));
}

TEST(AuthTest, NoncesDiffer) { EXPECT_NE(random_nonce(), random_nonce()); }

TEST(AuthTest, ChallengeAndProofRoundTrip) {
  const Challenge challenge{counting_nonce(3), counting_nonce(5)};
  EXPECT_EQ(*decode_challenge(encode(challenge)), challenge);
  EXPECT_EQ(*decode_proof(encode_proof(challenge.proof)), challenge.proof);
  EXPECT_EQ(encode(challenge).size(), max_payload_bytes(FrameType::kChallenge));
  EXPECT_EQ(encode_proof(challenge.proof).size(), max_payload_bytes(FrameType::kProof));
}

TEST(AuthTest, OtherSizesAreRefused) {
  const auto challenge = encode(Challenge{});
  const auto proof = encode_proof(Proof{});
  expect_all_truncations_refused(challenge, decode_challenge);
  expect_all_truncations_refused(proof, decode_proof);
  EXPECT_EQ(decode_challenge(with_extra_byte(challenge)).status().reason(), Reason::kFrame);
  EXPECT_EQ(decode_proof(with_extra_byte(proof)).status().reason(), Reason::kFrame);
}

}  // namespace
}  // namespace stagelink::wire
