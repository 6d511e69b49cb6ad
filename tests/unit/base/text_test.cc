#include "base/text.h"

#include <array>

#include <gtest/gtest.h>

namespace stagelink {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;

std::string message_of(const Status& status) { return std::string(status.message()); }

TEST(TextTest, DurationsTakeEveryUnit) {
  EXPECT_EQ(*parse_duration("7ns"), nanoseconds(7));
  EXPECT_EQ(*parse_duration("7us"), nanoseconds(7000));
  EXPECT_EQ(*parse_duration("200ms"), milliseconds(200));
  EXPECT_EQ(*parse_duration("5s"), seconds(5));
  EXPECT_EQ(*parse_duration("2min"), minutes(2));
  EXPECT_EQ(*parse_duration("1h"), hours(1));
  EXPECT_EQ(*parse_duration("5 s"), seconds(5));
  EXPECT_EQ(*parse_duration("1.5h"), minutes(90));
  EXPECT_EQ(*parse_duration("0s"), Duration::zero());
}

TEST(TextTest, ADurationWithoutUnitIsRefusedWithAHint) {
  for (const char* text : {"10", "0", "1.5"}) {
    const auto result = parse_duration(text);
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument) << text;
    EXPECT_NE(message_of(result.status()).find("needs a unit"), std::string::npos) << text;
  }
  EXPECT_NE(message_of(parse_duration("5m").status()).find("write min"), std::string::npos);
}

TEST(TextTest, WhatIsNoDurationIsRefused) {
  for (const char* text : {"", " ", "s", "-5s", "+5s", "5S", "5  s", "5s ", " 5s", "5sec", "1e3s",
                           "0x5s", "5.s", ".5s", "5.0.0s", "1.0000000001s", "inf", "nan"}) {
    EXPECT_FALSE(parse_duration(text).ok()) << text;
  }
}

TEST(TextTest, TheLargestDurationFitsAndOneMoreDoesNot) {
  EXPECT_EQ(parse_duration("9223372036854775807ns")->count(), INT64_MAX);
  EXPECT_FALSE(parse_duration("9223372036854775808ns").ok());
  EXPECT_FALSE(parse_duration("9223372036854775807s").ok());
  EXPECT_FALSE(parse_duration("99999999999999999999s").ok());
}

TEST(TextTest, AFractionMustBeExact) {
  EXPECT_EQ(parse_duration("0.000000001s")->count(), 1);
  EXPECT_FALSE(parse_duration("0.1ns").ok());
  EXPECT_EQ(*parse_bytes("1.5KiB"), 1536U);
  EXPECT_FALSE(parse_bytes("0.3KiB").ok());
}

TEST(TextTest, SizesTakeBinaryAndDecimalUnits) {
  EXPECT_EQ(*parse_bytes("0"), 0U);
  EXPECT_EQ(*parse_bytes("4096"), 4096U);
  EXPECT_EQ(*parse_bytes("4096B"), 4096U);
  EXPECT_EQ(*parse_bytes("64KiB"), 65536U);
  EXPECT_EQ(*parse_bytes("64 MiB"), 64ULL << 20);
  EXPECT_EQ(*parse_bytes("1GiB"), 1ULL << 30);
  EXPECT_EQ(*parse_bytes("1TiB"), 1ULL << 40);
  EXPECT_EQ(*parse_bytes("1KB"), 1000U);
  EXPECT_EQ(*parse_bytes("1MB"), 1'000'000U);
  EXPECT_EQ(*parse_bytes("1GB"), 1'000'000'000U);
  EXPECT_EQ(*parse_bytes("1TB"), 1'000'000'000'000U);
}

TEST(TextTest, AmbiguousSizesAreRefusedWithAHint) {
  EXPECT_NE(message_of(parse_bytes("1e9").status()).find("write 1GB"), std::string::npos);
  EXPECT_NE(message_of(parse_bytes("64k").status()).find("write KiB"), std::string::npos);
  EXPECT_NE(message_of(parse_bytes("1G").status()).find("write GiB"), std::string::npos);
  for (const char* text : {"", "B", "-1", "1gib", "1Gb", "1kb", "0x10", "1,000", "1_000", "1 "}) {
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
  }
}

TEST(TextTest, TheLargestSizeFitsAndOneMoreDoesNot) {
  EXPECT_EQ(*parse_bytes("9223372036854775807"), static_cast<uint64_t>(INT64_MAX));
  EXPECT_FALSE(parse_bytes("9223372036854775808").ok());
  EXPECT_EQ(*parse_bytes("8388607TiB"), 8388607ULL << 40);
  EXPECT_FALSE(parse_bytes("8388608TiB").ok());
  EXPECT_FALSE(parse_bytes("18446744073709551616").ok());
}

TEST(TextTest, BooleansTakeSixWordsAndNothingElse) {
  for (const char* text : {"true", "yes", "on"}) EXPECT_TRUE(*parse_bool(text)) << text;
  for (const char* text : {"false", "no", "off"}) EXPECT_FALSE(*parse_bool(text)) << text;
  for (const char* text : {"", "1", "0", "True", "YES", "y", "maybe"}) {
    EXPECT_FALSE(parse_bool(text).ok()) << text;
  }
}

TEST(TextTest, IntegersAreExact) {
  EXPECT_EQ(*parse_integer("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(*parse_integer("-9223372036854775808"), INT64_MIN);
  for (const char* text : {"", "-", "+1", "1.0", "1e3", "0x10", "1 ", " 1", "1k", "1_0",
                           "9223372036854775808", "-9223372036854775809"}) {
    EXPECT_FALSE(parse_integer(text).ok()) << text;
  }
}

TEST(TextTest, FormattedValuesReadBackTheSame) {
  for (const int64_t ns : {int64_t{0}, int64_t{1}, int64_t{1500}, int64_t{500'000'000},
                           int64_t{5'000'000'000}, int64_t{90'000'000'000}, INT64_MAX}) {
    EXPECT_EQ(parse_duration(format_duration(Duration(ns)))->count(), ns);
  }
  for (const uint64_t bytes : {0ULL, 1ULL, 4097ULL, 65536ULL, 1ULL << 62, 1'000'000'000ULL}) {
    EXPECT_EQ(*parse_bytes(format_bytes(bytes)), bytes);
  }
  EXPECT_EQ(format_duration(milliseconds(500)), "500ms");
  EXPECT_EQ(format_duration(seconds(90)), "90s");
  EXPECT_EQ(format_duration(Duration(INT64_MIN)), "-9223372036854775808ns");
  EXPECT_EQ(format_bytes(64 << 10), "64KiB");
  EXPECT_EQ(format_bytes(64000), "64000");
}

TEST(TextTest, NearestNameIsFoundOnlyWhenItIsNear) {
  constexpr std::array<std::string_view, 3> kNames = {"transfer_timeout", "connect_timeout", "pin"};
  EXPECT_EQ(nearest_name("tranfer_timeout", kNames), "transfer_timeout");
  EXPECT_EQ(nearest_name("tranfer_timeout_ms", kNames), "transfer_timeout");
  EXPECT_EQ(nearest_name("pni", kNames), "");
  EXPECT_EQ(nearest_name("pins", kNames), "pin");
  EXPECT_EQ(nearest_name("colour", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  EXPECT_EQ(nearest_name(std::string(65, 'p'), kNames), "");
}

TEST(TextTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(escape_control("a\nb\x1b\x7f"), "a\\nb\\x1b\\x7f");
  EXPECT_EQ(escape_control("\xc3\xa4"), "\xc3\xa4");
  EXPECT_EQ(escape_control(""), "");
}

// The UTF-8 of a code point, also of those that have none by the standard.
std::string utf8(char32_t c) {
  const auto tail = [c](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

TEST(TextTest, BothSidesOfEveryCharacterThatIsNotPlain) {
  constexpr char32_t kPlain[] = {0x20,   0x7e,   0xa0,    0x7ff,   0x800,   0x2027,  0x202a,
                                 0xd7ff, 0xe000, 0xfdcf,  0xfdf0,  0xfefe,  0xff00,  0xfffd,
                                 0xe4,   0x6f22, 0x1f600, 0x10000, 0x1fffd, 0x20000, 0x10fffd};
  for (const char32_t c : kPlain) {
    EXPECT_TRUE(is_plain_text(utf8(c))) << std::hex << static_cast<uint32_t>(c);
    EXPECT_EQ(escape_control("a" + utf8(c) + "b"), "a" + utf8(c) + "b");
  }
  constexpr char32_t kRefused[] = {0x0,    0x9,     0xa,     0xd,      0x1f,     0x7f,
                                   0x80,   0x85,    0x99,    0x9f,     0x2028,   0x2029,
                                   0xd800, 0xdfff,  0xfdd0,  0xfdef,   0xfeff,   0xfffe,
                                   0xffff, 0x1fffe, 0x1ffff, 0x10fffe, 0x10ffff, 0x110000};
  for (const char32_t c : kRefused) {
    EXPECT_FALSE(is_plain_text("a" + utf8(c) + "b")) << std::hex << static_cast<uint32_t>(c);
    const std::string shown = escape_control("a" + utf8(c) + "b");
    EXPECT_TRUE(is_plain_text(shown)) << shown;
    EXPECT_EQ(shown.find(utf8(c)), std::string::npos) << shown;
  }
}

TEST(TextTest, PlainTextIsCutBetweenCharactersAndSpoiltBytesAreReplaced) {
  const std::string text = "a\xc3\xa4\xe6\xbc\xa2\xf0\x9f\x98\x80";  // 1, 2, 3 and 4 bytes.
  constexpr size_t kCut[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (size_t bound = 0; bound < std::size(kCut); ++bound) {
    EXPECT_EQ(to_plain_text(text, bound), text.substr(0, kCut[bound])) << bound;
  }
  EXPECT_EQ(to_plain_text("a\nb\xc2\x85\xff" + text, 64), "a?b???" + text);
  EXPECT_EQ(to_plain_text("", 64), "");
}

TEST(TextTest, TextThatIsNotUtf8IsNotPlainAndIsEscapedByteByByte) {
  const std::string_view spoilt[] = {
      "\x80",              // A byte that only continues.
      "\xc3",              // Cut off.
      "\xe2\x82",          //
      "\xf0\x9f\x98",      //
      "\xc3(",             // Not continued.
      "\xe2\x82(",         //
      "\xc1\xbf",          // Longer than needed: U+007F, U+07FF and U+FFFD.
      "\xe0\x9f\xbf",      //
      "\xf0\x8f\xbf\xbd",  //
      "\xf8\x88\x80\x80\x80",
      "\xff",
  };
  for (const std::string_view text : spoilt) {
    EXPECT_FALSE(is_plain_text(text)) << escape_control(text);
    EXPECT_TRUE(is_plain_text(escape_control(text))) << escape_control(text);
  }
  EXPECT_EQ(escape_control("\xe2\x82("), "\\xe2\\x82(");
  EXPECT_EQ(escape_control("\xc3\xc3\xa4"), "\\xc3\xc3\xa4");
  EXPECT_EQ(escape_control("\xc2\x99"), "\\xc2\\x99");
}

}  // namespace
}  // namespace stagelink
