#include "cli/replay/rank/pair_message.h"

#include <vector>

#include <gtest/gtest.h>

namespace stagelink::cli::replay {
namespace {

std::vector<AskRecord> asks(uint32_t count) {
  std::vector<AskRecord> records;
  for (uint32_t i = 0; i < count; ++i) records.push_back({{1000 + i, 16 * i}, i});
  return records;
}

PairMessage round_trip(const PairMessage& message) {
  auto decoded = decode_pair_message(encode(message));
  EXPECT_TRUE(decoded.ok()) << decoded.status().to_string();
  return *std::move(decoded);
}

TEST(PairMessageTest, AHelloComesBackAsItWas) {
  const Hello hello{3, Layout{2, 1, 4, 96, 32, 77}, {std::byte{1}, std::byte{2}}, {std::byte{9}}};
  const PairMessage message = round_trip({0, 0, hello});
  const auto& got = std::get<Hello>(message.body);
  EXPECT_EQ(got.rank, 3U);
  EXPECT_EQ(got.layout, hello.layout);
  EXPECT_EQ(got.descriptor, hello.descriptor);
  EXPECT_EQ(got.region, hello.region);
}

TEST(PairMessageTest, AListComesBackInParts) {
  const auto records = asks(1000);
  std::vector<AskRecord> together;
  for (const PairMessage& sent : in_parts(7, 2, std::span<const AskRecord>(records))) {
    EXPECT_LE(encode(sent).size(), kMaxPartBytes);
    const PairMessage message = round_trip(sent);
    EXPECT_EQ(message.request, 7U);
    EXPECT_EQ(message.attempt, 2U);
    const auto& part = std::get<AskPart>(message.body);
    ASSERT_TRUE(append_part(together, part).ok());
    EXPECT_EQ(part.last(), together.size() == records.size());
  }
  ASSERT_EQ(together.size(), records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(together[i].key, records[i].key);
    EXPECT_EQ(together[i].block, records[i].block);
  }
}

TEST(PairMessageTest, OnePartMoreIsMadeOnlyWhenOneIsFull) {
  constexpr uint32_t kFull = records_per_part(16);
  EXPECT_EQ(in_parts(0, 0, std::span<const AskRecord>(asks(kFull))).size(), 1U);
  EXPECT_EQ(in_parts(0, 0, std::span<const AskRecord>(asks(kFull + 1))).size(), 2U);
}

TEST(PairMessageTest, AnEmptyListIsOnePart) {
  const auto parts = in_parts(0, 0, std::span<const uint32_t>());
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_TRUE(std::get<AgainPart>(round_trip(parts[0]).body).last());
}

TEST(PairMessageTest, ReadyDoneAndFailedComeBack) {
  const ReadyRecord records[] = {{5, 0x1122334455667788}};
  const PairMessage ready =
      round_trip(in_parts(1, 1, std::span<const ReadyRecord>(records)).front());
  EXPECT_EQ(std::get<ReadyPart>(ready.body).records[0].checksum, 0x1122334455667788U);
  EXPECT_EQ(std::get<ReadyPart>(ready.body).records[0].block, 5U);
  EXPECT_TRUE(std::holds_alternative<Done>(round_trip({1, 1, Done{}}).body));
  EXPECT_EQ(std::get<Failed>(round_trip({1, 1, Failed{Reason::kBusy}}).body).reason, Reason::kBusy);
}

TEST(PairMessageTest, AShortOrLongMessageIsRefused) {
  const auto records = asks(3);
  for (const PairMessage& message :
       {in_parts(1, 1, std::span<const AskRecord>(records)).front(),
        PairMessage{1, 1, Hello{0, {}, {std::byte{1}}, {std::byte{2}}}},
        PairMessage{1, 1, Failed{Reason::kBusy}}, PairMessage{1, 1, Done{}}}) {
    auto bytes = encode(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decode_pair_message(std::span(bytes).first(size)).ok()) << size;
    }
    bytes.push_back(std::byte{0});
    EXPECT_EQ(decode_pair_message(bytes).status().reason(), Reason::kFrame);
  }
}

TEST(PairMessageTest, AnotherVersionIsRefusedByName) {
  auto bytes = encode({1, 1, Done{}});
  bytes[2] = std::byte{9};
  EXPECT_EQ(decode_pair_message(bytes).status().reason(), Reason::kVersion);
}

TEST(PairMessageTest, UnknownTypesAndReasonsAreRefused) {
  auto bytes = encode({1, 1, Done{}});
  bytes[3] = std::byte{6};
  EXPECT_EQ(decode_pair_message(bytes).status().reason(), Reason::kFrame);
  auto failed = encode({1, 1, Failed{Reason::kBusy}});
  failed.back() = static_cast<std::byte>(kReasonCount);
  EXPECT_FALSE(decode_pair_message(failed).ok());
  failed.back() = std::byte{0};  // A failure is never ok.
  EXPECT_FALSE(decode_pair_message(failed).ok());
}

TEST(PairMessageTest, AListBeyondItsTotalIsRefused) {
  const uint32_t positions[] = {1, 2, 3};
  PairMessage message = in_parts(1, 1, std::span<const uint32_t>(positions)).front();
  std::get<AgainPart>(message.body).total = 2;
  EXPECT_FALSE(decode_pair_message(encode(message)).ok());
  std::get<AgainPart>(message.body).total = kMaxListRecords;
  EXPECT_TRUE(decode_pair_message(encode(message)).ok());
  std::get<AgainPart>(message.body).total = kMaxListRecords + 1;
  EXPECT_FALSE(decode_pair_message(encode(message)).ok());
}

TEST(PairMessageTest, AGapBetweenPartsIsRefused) {
  std::vector<uint32_t> list = {1};
  EXPECT_FALSE(append_part(list, AgainPart{2, 4, {5}}).ok());
  EXPECT_TRUE(append_part(list, AgainPart{1, 4, {5}}).ok());
}

}  // namespace
}  // namespace stagelink::cli::replay
