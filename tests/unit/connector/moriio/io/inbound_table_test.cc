#include "connector/moriio/io/inbound_table.h"

#include <gtest/gtest.h>

namespace stagelink::moriio {
namespace {

Notification notice(std::string_view key, uint64_t id, Reason outcome = Reason::kOk) {
  return {.payload = pack_inbound_notice(id, key), .outcome = outcome};
}

TEST(InboundTableTest, EachEntryIsPoppedOnce) {
  InboundTable table;
  table.add(notice("a", 1));
  EXPECT_EQ(table.pop("b", 1), std::nullopt);
  EXPECT_EQ(table.pop("a", 2), std::nullopt);
  EXPECT_EQ(table.pop("a", 1), Reason::kOk);
  EXPECT_EQ(table.pop("a", 1), std::nullopt);
  EXPECT_EQ(table.size(), 0U);
}

TEST(InboundTableTest, TwoTransfersUnderOneIdAreTwoEntriesInTheirOrder) {
  InboundTable table;
  table.add(notice("a", 7, Reason::kPeerLost));
  table.add(notice("a", 7));
  table.add(notice("b", 7, Reason::kCancelled));
  EXPECT_EQ(table.pop("a", 7), Reason::kPeerLost);
  EXPECT_EQ(table.pop("a", 7), Reason::kOk);
  EXPECT_EQ(table.pop("a", 7), std::nullopt);
  EXPECT_EQ(table.pop("b", 7), Reason::kCancelled);
}

TEST(InboundTableTest, BeyondItsBoundTheOldestAreForgotten) {
  InboundTable table;
  for (uint64_t id = 0; id < InboundTable::kMaxEntries; ++id) table.add(notice("a", id));
  EXPECT_EQ(table.size(), InboundTable::kMaxEntries);
  table.add(notice("a", InboundTable::kMaxEntries));
  EXPECT_EQ(table.size(), InboundTable::kMaxEntries);
  EXPECT_EQ(table.pop("a", 0), std::nullopt);
  EXPECT_EQ(table.pop("a", 1), Reason::kOk);
  EXPECT_EQ(table.pop("a", InboundTable::kMaxEntries), Reason::kOk);
}

TEST(InboundNoticeTest, RoundTripsAndHasItsBytes) {
  const auto bytes = pack_inbound_notice(0x0102030405060708, "key");
  constexpr unsigned char kGolden[] = {'S', 'L', 'T', '1', 8, 7,   6,   5,  4,
                                       3,   2,   1,   3,   0, 'k', 'e', 'y'};
  ASSERT_EQ(bytes.size(), sizeof(kGolden));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), std::as_bytes(std::span(kGolden)).begin()));
  auto notice = unpack_inbound_notice(bytes);
  ASSERT_TRUE(notice.ok()) << notice.status().to_string();
  EXPECT_EQ(notice->id, 0x0102030405060708U);
  EXPECT_EQ(notice->key, "key");
}

TEST(InboundNoticeTest, DamagedOnesAreRefusedAndForgotten) {
  InboundTable table;
  auto bytes = pack_inbound_notice(1, "key");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(unpack_inbound_notice(std::span(bytes).first(size)).status().reason(),
              Reason::kFrame);
  }
  bytes.push_back(std::byte{0});
  table.add({.payload = bytes});
  bytes[0] = std::byte{0};
  table.add({.payload = bytes});
  table.add(notice("line\nbreak", 1));
  EXPECT_EQ(table.size(), 0U);
}

}  // namespace
}  // namespace stagelink::moriio
