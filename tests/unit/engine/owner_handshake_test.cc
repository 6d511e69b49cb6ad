#include "engine/link/owner_handshake.h"

#include <optional>
#include <string_view>

#include <gtest/gtest.h>

#include "base/random.h"
#include "wire/frame.h"

namespace stagelink::engine {
namespace {

using wire::AuthKey;
using wire::FrameType;

AuthKey key_of(std::string_view secret) {
  return *AuthKey::derive(std::as_bytes(std::span(secret)));
}

wire::Hello sample_hello(bool authenticates) {
  wire::Hello hello;
  hello.version = wire::own_version();
  hello.role = wire::Role::kData;
  hello.instance = InstanceId{1, 2};
  hello.name = "initiator";
  hello.authenticates = authenticates;
  if (authenticates) hello.nonce = wire::random_nonce();
  return hello;
}

std::vector<std::byte> frame(FrameType type, std::span<const std::byte> payload) {
  const auto header = wire::encode(
      wire::FrameHeader{.type = type, .payload_bytes = static_cast<uint32_t>(payload.size())});
  std::vector<std::byte> out(header.begin(), header.end());
  out.insert(out.end(), payload.begin(), payload.end());
  return out;
}

// Feeds all of `bytes`, as much at a time as is wanted and at most `step`.
Result<std::optional<wire::Challenge>> feed(OwnerHandshake& handshake,
                                            std::span<const std::byte> bytes, size_t step = 512) {
  std::optional<wire::Challenge> last;
  while (!bytes.empty()) {
    const size_t part = std::min({bytes.size(), handshake.wanted(), step});
    EXPECT_GT(part, 0U) << "the handshake wants no more, and there is more";
    if (part == 0) break;
    SL_ASSIGN(const auto challenge, handshake.take(bytes.first(part)));
    if (challenge.has_value()) last = challenge;
    bytes = bytes.subspan(part);
  }
  return last;
}

Reason reason_of(const Result<std::optional<wire::Challenge>>& result) {
  return result.status().reason();
}

// A handshake that has challenged `hello`.
struct Challenged {
  explicit Challenged(const wire::Hello& said) : hello(wire::encode(said)) {
    challenge = *feed(handshake, frame(FrameType::kHello, hello));
  }
  Result<std::optional<wire::Challenge>> answer(const wire::Proof& proof) {
    return feed(handshake, frame(FrameType::kProof, wire::encode_proof(proof)));
  }

  AuthKey key = key_of("the secret of both sides, 32 bytes");
  std::vector<std::byte> hello;
  OwnerHandshake handshake{&key};
  std::optional<wire::Challenge> challenge;
};

TEST(OwnerHandshakeTest, WithoutASecretTheHelloIsAll) {
  const wire::Hello hello = sample_hello(false);
  for (const size_t step : {1UL, 23UL, 24UL, 512UL}) {
    OwnerHandshake handshake(nullptr);
    EXPECT_FALSE(handshake.begun());
    const auto answer = feed(handshake, frame(FrameType::kHello, wire::encode(hello)), step);
    ASSERT_TRUE(answer.ok()) << answer.status().to_string();
    EXPECT_FALSE((*answer).has_value());
    EXPECT_TRUE(handshake.done());
    EXPECT_EQ(handshake.wanted(), 0U);
    EXPECT_EQ(handshake.hello(), hello);
  }
}

TEST(OwnerHandshakeTest, ARightProofEndsIt) {
  const wire::Hello hello = sample_hello(true);
  Challenged owner(hello);
  ASSERT_TRUE(owner.challenge.has_value());
  EXPECT_FALSE(owner.handshake.done());
  const AuthKey initiator = key_of("the secret of both sides, 32 bytes");
  EXPECT_TRUE(initiator.verify(owner.challenge->proof, wire::Side::kOwner, owner.hello,
                               owner.challenge->nonce));
  const auto end =
      owner.answer(initiator.prove(wire::Side::kInitiator, owner.hello, owner.challenge->nonce));
  ASSERT_TRUE(end.ok()) << end.status().to_string();
  EXPECT_TRUE(owner.handshake.done());
  EXPECT_EQ(owner.handshake.hello(), hello);
}

TEST(OwnerHandshakeTest, AnotherSecretIsRefused) {
  Challenged owner(sample_hello(true));
  const AuthKey other = key_of("the secret of somebody else, 32 bytes");
  const auto end =
      owner.answer(other.prove(wire::Side::kInitiator, owner.hello, owner.challenge->nonce));
  EXPECT_EQ(reason_of(end), Reason::kAuthentication);
  EXPECT_FALSE(owner.handshake.done());
}

TEST(OwnerHandshakeTest, OurOwnProofSentBackIsRefused) {
  Challenged owner(sample_hello(true));
  EXPECT_EQ(reason_of(owner.answer(owner.challenge->proof)), Reason::kAuthentication);
}

TEST(OwnerHandshakeTest, ARecordedHandshakeIsRefused) {
  const wire::Hello hello = sample_hello(true);
  Challenged first(hello);
  const AuthKey key = key_of("the secret of both sides, 32 bytes");
  const auto proof = key.prove(wire::Side::kInitiator, first.hello, first.challenge->nonce);
  ASSERT_TRUE(first.answer(proof).ok());
  Challenged second(hello);
  EXPECT_EQ(reason_of(second.answer(proof)), Reason::kAuthentication);
}

TEST(OwnerHandshakeTest, AHelloChangedOnItsWayIsRefused) {
  wire::Hello hello = sample_hello(true);
  const auto sent = wire::encode(hello);
  hello.role = wire::Role::kControl;
  Challenged owner(hello);
  const AuthKey key = key_of("the secret of both sides, 32 bytes");
  const auto end = owner.answer(key.prove(wire::Side::kInitiator, sent, owner.challenge->nonce));
  EXPECT_EQ(reason_of(end), Reason::kAuthentication);
}

TEST(OwnerHandshakeTest, ASideWithoutASecretIsRefusedByOneThatHasIt) {
  const AuthKey key = key_of("the secret of both sides, 32 bytes");
  OwnerHandshake with(&key);
  EXPECT_EQ(reason_of(feed(with, frame(FrameType::kHello, wire::encode(sample_hello(false))))),
            Reason::kAuthentication);
  OwnerHandshake without(nullptr);
  EXPECT_EQ(reason_of(feed(without, frame(FrameType::kHello, wire::encode(sample_hello(true))))),
            Reason::kAuthentication);
}

TEST(OwnerHandshakeTest, AMinorThatDoesNotKnowProofsIsTooOld) {
  wire::Hello hello = sample_hello(false);
  hello.version.minor = 0;
  const AuthKey key = key_of("the secret of both sides, 32 bytes");
  OwnerHandshake with(&key);
  EXPECT_EQ(reason_of(feed(with, frame(FrameType::kHello, wire::encode(hello)))), Reason::kVersion);
  hello.version.minor = 1;
  OwnerHandshake without(nullptr);
  ASSERT_TRUE(feed(without, frame(FrameType::kHello, wire::encode(hello))).ok());
  EXPECT_TRUE(without.done());
}

TEST(OwnerHandshakeTest, AnInitiatorThatDoesNotBelieveUsIsTold) {
  Challenged owner(sample_hello(true));
  const auto refusal = frame(
      FrameType::kRefuse, wire::encode(wire::Outcome{Reason::kAuthentication, "another secret"}));
  const auto header = std::span(refusal).first(wire::kFrameHeaderBytes);
  EXPECT_EQ(reason_of(owner.handshake.take(header)), Reason::kAuthentication);
}

TEST(OwnerHandshakeTest, OtherFramesAreRefusedAtTheirHeader) {
  for (const auto type : {FrameType::kProof, FrameType::kWelcome, FrameType::kRead,
                          FrameType::kRefuse, FrameType::kBye}) {
    OwnerHandshake handshake(nullptr);
    EXPECT_EQ(reason_of(handshake.take(frame(type, {}))), Reason::kFrame);
  }
  for (const auto type : {FrameType::kHello, FrameType::kChallenge, FrameType::kPing}) {
    Challenged owner(sample_hello(true));
    EXPECT_EQ(reason_of(owner.handshake.take(frame(type, {}))), Reason::kFrame);
  }
}

TEST(OwnerHandshakeTest, RandomBytesNeverEndIt) {
  SplitMix64 random(random_u64());
  const AuthKey key = key_of("the secret of both sides, 32 bytes");
  for (int round = 0; round < 2000; ++round) {
    OwnerHandshake handshake(round % 2 == 0 ? &key : nullptr);
    auto bytes = frame(FrameType::kHello, wire::encode(sample_hello(round % 4 < 2)));
    const size_t flips = 1 + random.below(8);
    // Behind the header's length, so that the frame is whole.
    for (size_t i = 0; i < flips; ++i) {
      bytes[wire::kFrameHeaderBytes + random.below(8)] ^= std::byte{1} << random.below(8);
    }
    bytes[wire::kFrameHeaderBytes] = std::byte{0x41};  // No major version of ours, at the least.
    (void)feed(handshake, bytes);
    EXPECT_FALSE(handshake.done());
  }
}

}  // namespace
}  // namespace stagelink::engine
