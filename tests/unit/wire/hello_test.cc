#include "wire/hello.h"

#include <gtest/gtest.h>

#include "unit/wire/golden.h"
#include "wire/reason_code.h"

namespace stagelink::wire {
namespace {

// The version is written out, so that the golden files do not change with it.
const Hello kHello{.version = {1, 1},
                   .role = Role::kData,
                   .instance = {0x0102030405060708, 0x1112131415161718},
                   .target = {0x2122232425262728, 0x3132333435363738},
                   .host = {0x4142434445464748, 0x5152535455565758},
                   .pid = 4711,
                   .name = "decode-0"};
const Welcome kWelcome{.version = {1, 1},
                       .instance = {0x0102030405060708, 0x1112131415161718},
                       .host = {0x4142434445464748, 0x5152535455565758},
                       .pid = 4712,
                       .table_capacity = 65536,
                       .ring_bytes = 32768,
                       .page_nonce = 0x6162636465666768,
                       .max_notification_bytes = 8192,
                       .name = "prefill-0",
                       .socket_path = "/run/user/0/stagelink/4712.sock"};
Hello full_hello() {
  Hello hello = kHello;
  hello.authenticates = true;
  hello.nonce.fill(std::byte{0xa5});
  return hello;
}
Welcome full_welcome() {
  Welcome welcome = kWelcome;
  welcome.checks = true;
  return welcome;
}
// With what minor 2 knows besides.
Hello newer_hello() {
  Hello hello = full_hello();
  hello.version = {1, 2};
  hello.may_stage = true;
  return hello;
}
Welcome newer_welcome() {
  Welcome welcome = kWelcome;
  welcome.version = {1, 2};
  welcome.stages = true;
  return welcome;
}
const Outcome kOutcome{.reason = Reason::kReadOnly, .message = "region 3 is read-only"};

TEST(HelloTest, HasItsGoldenBytes) {
  expect_golden("hello_1_1.bin", encode(full_hello()));
  expect_golden("hello_1_2.bin", encode(newer_hello()));
}
TEST(WelcomeTest, HasItsGoldenBytes) {
  expect_golden("welcome_1_1.bin", encode(full_welcome()));
  expect_golden("welcome_1_2.bin", encode(newer_welcome()));
}
TEST(OutcomeTest, HasItsGoldenBytes) { expect_golden("outcome.bin", encode(kOutcome)); }

TEST(HelloTest, RoundTrips) {
  auto hello = decode_hello(encode(kHello));
  ASSERT_TRUE(hello.ok()) << hello.status().to_string();
  EXPECT_EQ(*hello, kHello);
}

TEST(HelloTest, EveryFlagRoundTrips) {
  for (int bits = 0; bits < 8; ++bits) {
    Hello hello = newer_hello();
    hello.authenticates = (bits & 1) != 0;
    hello.wants_checks = (bits & 2) != 0;
    hello.may_stage = (bits & 4) != 0;
    EXPECT_EQ(*decode_hello(encode(hello)), hello);
    Welcome welcome = newer_welcome();
    welcome.checks = hello.wants_checks;
    welcome.stages = hello.may_stage;
    EXPECT_EQ(*decode_welcome(encode(welcome)), welcome);
  }
  expect_all_truncations_refused(encode(newer_hello()), decode_hello);
  expect_all_truncations_refused(encode(newer_welcome()), decode_welcome);
  EXPECT_FALSE(decode_hello(with_extra_byte(encode(newer_hello()))).ok());
  EXPECT_FALSE(decode_welcome(with_extra_byte(encode(newer_welcome()))).ok());
}

TEST(HelloTest, AnUnknownFlagIsRefusedUnlessItIsOfANewerMinor) {
  auto old = encode(full_hello());
  place_at(old, old.size() - 36, uint32_t{1U << 2});
  EXPECT_TRUE(names(decode_hello(old).status(), "flags"));
  auto hello = encode(newer_hello());
  place_at(hello, hello.size() - 36, uint32_t{1U << 3});
  EXPECT_TRUE(names(decode_hello(hello).status(), "flags"));
  place_at(hello, 2, static_cast<uint16_t>(own_version().minor + 1));
  EXPECT_TRUE(decode_hello(hello).ok());
  auto welcome = encode(newer_welcome());
  place_at(welcome, welcome.size() - 4, uint32_t{1});
  EXPECT_TRUE(names(decode_welcome(welcome).status(), "flags"));
}

TEST(HelloTest, AnOlderMinorIsNotToldOfWhatItDoesNotKnow) {
  Hello hello = newer_hello();
  hello.version = {1, 1};
  EXPECT_EQ(encode(hello), encode(full_hello()));
  Welcome welcome = newer_welcome();
  welcome.version = {1, 1};
  EXPECT_EQ(encode(welcome), encode(kWelcome));
}

TEST(WelcomeTest, RoundTrips) {
  auto welcome = decode_welcome(encode(kWelcome));
  ASSERT_TRUE(welcome.ok()) << welcome.status().to_string();
  EXPECT_EQ(*welcome, kWelcome);
}

TEST(OutcomeTest, RoundTripsEveryReason) {
  for (int i = 0; i < kReasonCount; ++i) {
    const Outcome outcome{static_cast<Reason>(i), "why"};
    auto again = decode_outcome(encode(outcome));
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(*again, outcome);
  }
}

TEST(HelloTest, RefusesEveryTruncation) {
  expect_all_truncations_refused(encode(kHello), decode_hello);
}
TEST(WelcomeTest, RefusesEveryTruncation) {
  expect_all_truncations_refused(encode(kWelcome), decode_welcome);
}
TEST(OutcomeTest, RefusesEveryTruncation) {
  expect_all_truncations_refused(encode(kOutcome), decode_outcome);
}

TEST(HelloTest, RefusesTrailingBytes) {
  EXPECT_EQ(decode_hello(with_extra_byte(encode(kHello))).status().reason(), Reason::kFrame);
  EXPECT_EQ(decode_welcome(with_extra_byte(encode(kWelcome))).status().reason(), Reason::kFrame);
  EXPECT_EQ(decode_outcome(with_extra_byte(encode(kOutcome))).status().reason(), Reason::kFrame);
}

TEST(HelloTest, ANewerMinorMayAppendFields) {
  Hello hello = kHello;
  hello.version = own_version();
  ++hello.version.minor;
  auto decoded = decode_hello(with_extra_byte(encode(hello)));
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(*decoded, hello);
}

TEST(HelloTest, UnknownRolesAreRefused) {
  for (const int role : {0, 4, 255}) {
    auto bytes = encode(kHello);
    place_at(bytes, 4, static_cast<uint8_t>(role));
    EXPECT_TRUE(names(decode_hello(bytes).status(), "role"));
  }
}

TEST(HelloTest, ReservedBytesMustBeZero) {
  for (const size_t offset : {5, 6, 7}) {
    auto bytes = encode(kHello);
    place_at(bytes, offset, uint8_t{1});
    EXPECT_TRUE(names(decode_hello(bytes).status(), "reserved"));
  }
}

TEST(HelloTest, NamesAreBoundedAndPrintable) {
  Hello hello = kHello;
  hello.name.assign(kMaxNameBytes, 'n');
  EXPECT_EQ(*decode_hello(encode(hello)), hello);
  auto bytes = encode(hello);
  place_at(bytes, 60, static_cast<uint16_t>(kMaxNameBytes + 1));
  bytes.push_back(std::byte{'n'});
  EXPECT_TRUE(names(decode_hello(bytes).status(), "name is too long"));
  bytes = encode(kHello);
  place_at(bytes, 62, '\n');
  EXPECT_TRUE(names(decode_hello(bytes).status(), "name is no plain text"));
  place_at(bytes, 62, '\xff');
  EXPECT_TRUE(names(decode_hello(bytes).status(), "name is no plain text"));
}

TEST(HelloTest, TheEncoderCutsAndCleansTexts) {
  Hello hello = kHello;
  hello.name = "a\nb" + std::string(200, 'x');
  auto decoded = decode_hello(encode(hello));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->name, "a?b" + std::string(kMaxNameBytes - 3, 'x'));
  hello.name = std::string(kMaxNameBytes - 1, 'x') + "\xc3\xa4";  // Not cut within a character.
  decoded = decode_hello(encode(hello));
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded->name, std::string(kMaxNameBytes - 1, 'x'));
  auto outcome = decode_outcome(encode(Outcome{Reason::kBusy, std::string(5000, 'm')}));
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->message.size(), kMaxMessageBytes);
}

TEST(OutcomeTest, AnUnknownReasonBecomesTheFirstOfItsCode) {
  auto bytes = encode(kOutcome);
  place_at(bytes, 0, static_cast<uint16_t>(static_cast<uint16_t>(Code::kPermission) << 8 | 200));
  auto outcome = decode_outcome(bytes);
  ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
  EXPECT_EQ(outcome->reason, Reason::kPermission);
}

TEST(OutcomeTest, AnUnknownCodeIsRefused) {
  auto bytes = encode(kOutcome);
  place_at(bytes, 0, static_cast<uint16_t>(kCodeCount << 8));
  EXPECT_TRUE(names(decode_outcome(bytes).status(), "reason"));
}

TEST(OutcomeTest, BecomesAStatusThatSaysWhoSaidIt) {
  EXPECT_TRUE(to_status(Outcome{}, "peer").ok());
  const Status status = to_status(kOutcome, "peer");
  EXPECT_EQ(status.reason(), Reason::kReadOnly);
  EXPECT_EQ(status.message(), "peer: region 3 is read-only");
}

TEST(ReasonCodeTest, TheFirstReasonOfACodeHasPlaceZero) {
  EXPECT_EQ(pack_reason(Reason::kOk), 0);
  EXPECT_EQ(pack_reason(Reason::kInvalidArgument), 0x0100);
  EXPECT_EQ(pack_reason(Reason::kOutOfBounds), 0x0101);
  EXPECT_EQ(pack_reason(Reason::kSystem), 0x1003);
}

TEST(VersionTest, NeighbouringMinorsSpeakWithEachOther) {
  const Version ours = own_version();
  EXPECT_TRUE(check_version(ours, "test").ok());
  EXPECT_TRUE(check_version({ours.major, static_cast<uint16_t>(ours.minor + 1)}, "test").ok());
  const Status newer = check_version({ours.major, static_cast<uint16_t>(ours.minor + 2)}, "test");
  EXPECT_EQ(newer.reason(), Reason::kVersion);
  for (const int major : {ours.major - 1, ours.major + 1}) {
    const Status other = check_version({static_cast<uint16_t>(major), 7}, "test");
    EXPECT_EQ(other.reason(), Reason::kVersion);
    EXPECT_TRUE(names(other, std::to_string(major) + ".7"));
    EXPECT_TRUE(names(other, std::to_string(ours.major) + "." + std::to_string(ours.minor)));
  }
}

TEST(VersionTest, AnotherMajorIsIncompatibleWhateverFollows) {
  auto bytes = encode(kHello);
  place_at(bytes, 0, uint16_t{99});
  bytes.resize(10);
  EXPECT_EQ(decode_hello(bytes).status().code(), Code::kIncompatible);
  EXPECT_EQ(decode_welcome(bytes).status().code(), Code::kIncompatible);
}

}  // namespace
}  // namespace stagelink::wire
