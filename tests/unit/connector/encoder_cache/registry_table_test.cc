#include "connector/encoder_cache/registry/registry_table.h"

#include <array>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "integration/support/sanitized.h"
#include "unit/connector/encoder_cache/registry_test.h"

namespace stagelink::encoder_cache::test {
namespace {

using Now = RegistryTable::Now;

// A moment to count from, so that no test waits.
const Now kStart = RegistryTable::Clock::now();

uint64_t publish_one(RegistryTable& table, const PublishTerms& terms, const PublishedItem& item,
                     Now now = kStart) {
  auto outcome = table.publish(terms, std::span(&item, 1), now);
  if (!outcome.ok()) return 100 + static_cast<uint64_t>(outcome.status().code());
  return static_cast<uint64_t>(outcome->items[0].code());
}

TEST(RegistryTableTest, WhatIsPublishedIsFoundAsItWasSaid) {
  RegistryTable table;
  const PublishTerms terms = terms_of(5000);
  const PublishedItem item = item_of("a", 3, 17);
  ASSERT_EQ(publish_one(table, terms, item), 0u);
  const auto found = table.lookup("a", kStart);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(*found, (ProducerEntry{item.info, terms.producer_zmq, 17}));
  EXPECT_FALSE(table.lookup("b", kStart).has_value());
  EXPECT_TRUE(table.lookup_all("b", kStart).empty());
}

TEST(RegistryTableTest, ALaterPublishOfOneProducerReplacesItsEntry) {
  RegistryTable table;
  const PublishTerms terms = terms_of(5000);
  publish_one(table, terms, item_of("a", 3, 1));
  publish_one(table, terms, item_of("a", 5, 2));
  ASSERT_EQ(table.lookup_all("a", kStart).size(), 1u);
  EXPECT_EQ(table.lookup("a", kStart)->generation, 2u);
  EXPECT_EQ(table.usage().entries, 1u);
}

TEST(RegistryTableTest, ProducersOfOneHashTakeTurns) {
  RegistryTable table;
  for (uint16_t port = 1; port <= 3; ++port) {
    publish_one(table, terms_of(port), item_of("a", 4, port));
  }
  EXPECT_EQ(table.lookup_all("a", kStart).size(), 3u);
  std::array<int, 4> seen{};
  for (int i = 0; i < 9; ++i) ++seen.at(table.lookup("a", kStart)->generation);
  EXPECT_EQ(seen, (std::array<int, 4>{0, 3, 3, 3}));
}

TEST(RegistryTableTest, UnpublishTakesOnlyTheEntriesOfItsLease) {
  RegistryTable table;
  const PublishTerms one = terms_of(1);
  const PublishTerms two = terms_of(2);
  publish_one(table, one, item_of("a", 4, 1));
  publish_one(table, two, item_of("a", 4, 2));
  const std::vector<std::string> hashes = {"a", "b"};
  EXPECT_EQ(table.unpublish(random_instance_id(), hashes), 0u);
  EXPECT_EQ(table.unpublish(one.lease, hashes), 1u);
  EXPECT_EQ(table.unpublish(one.lease, hashes), 0u);
  ASSERT_EQ(table.lookup_all("a", kStart).size(), 1u);
  EXPECT_EQ(table.lookup("a", kStart)->generation, 2u);
  EXPECT_EQ(table.unpublish_all(two.lease), 1u);
  EXPECT_FALSE(table.lookup("a", kStart).has_value());
}

TEST(RegistryTableTest, EntriesEndWithTheirLeaseAndARenewalKeepsThem) {
  RegistryTable table;
  const PublishTerms terms = terms_of(1, 10s);
  publish_one(table, terms, item_of("a"));
  EXPECT_TRUE(table.lookup("a", kStart + 10s - 1ns).has_value());
  EXPECT_FALSE(table.lookup("a", kStart + 10s).has_value());

  auto held = table.renew(terms.lease, 10s, kStart + 9s);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(*held, 1u);
  EXPECT_TRUE(table.lookup("a", kStart + 18s).has_value());

  EXPECT_EQ(table.renew(terms.lease, 10s, kStart + 19s).status().reason(), Reason::kExpired);
  EXPECT_EQ(table.renew(terms.lease, 10s, kStart + 19s).status().reason(), Reason::kNotFound);
  EXPECT_FALSE(table.lookup("a", kStart + 19s).has_value());
}

TEST(RegistryTableTest, APublishUnderAnEndedLeaseSaysThatAllIsGone) {
  RegistryTable table;
  const PublishTerms terms = terms_of(1, 10s);
  const PublishedItem item = item_of("a");
  EXPECT_TRUE(table.publish(terms, std::span(&item, 1), kStart)->fresh);
  EXPECT_FALSE(table.publish(terms, std::span(&item, 1), kStart + 5s)->fresh);
  const PublishedItem other = item_of("b");
  EXPECT_TRUE(table.publish(terms, std::span(&other, 1), kStart + 20s)->fresh);
  EXPECT_FALSE(table.lookup("a", kStart + 20s).has_value());
  EXPECT_TRUE(table.lookup("b", kStart + 20s).has_value());
  EXPECT_EQ(table.usage().leases, 1u);
}

TEST(RegistryTableTest, AnEntryMayEndBeforeItsLease) {
  RegistryTable table;
  PublishTerms terms = terms_of(1, 100s);
  terms.item_ttl = 3s;
  publish_one(table, terms, item_of("a"));
  EXPECT_TRUE(table.lookup("a", kStart + 2s).has_value());
  EXPECT_FALSE(table.lookup("a", kStart + 3s).has_value());
}

TEST(RegistryTableTest, ARestartedProducerEndsWhatItsFormerSelfSaid) {
  RegistryTable table;
  publish_one(table, terms_of(1), item_of("old"));
  publish_one(table, terms_of(1), item_of("new"));
  EXPECT_FALSE(table.lookup("old", kStart).has_value());
  EXPECT_TRUE(table.lookup("new", kStart).has_value());
}

TEST(RegistryTableTest, ALeaseStaysWithItsAddress) {
  RegistryTable table;
  PublishTerms terms = terms_of(1);
  publish_one(table, terms, item_of("a"));
  terms.producer_zmq = "tcp://127.0.0.1:2";
  EXPECT_EQ(publish_one(table, terms, item_of("a")),
            100 + static_cast<uint64_t>(Code::kInvalidArgument));
}

TEST(RegistryTableTest, ASweepGivesTheMemoryOfEndedEntriesBack) {
  RegistryTable table;
  const uint64_t before = table.usage().bytes;
  for (uint16_t port = 1; port <= 5; ++port) {
    const PublishTerms terms = terms_of(port);
    for (int i = 0; i < 100; ++i) publish_one(table, terms, item_of(std::to_string(port * i)));
  }
  const PublishTerms last = terms_of(99, 5s);
  for (int i = 0; i < 100; ++i) publish_one(table, last, item_of(std::to_string(i)));
  EXPECT_GT(table.usage().bytes, before);
  uint64_t swept = 0;
  for (int i = 0; i < 64; ++i) swept += table.sweep(64, kStart + 31s);
  EXPECT_EQ(swept, 600u) << "of 500 and 100 entries";
  const TableUsage usage = table.usage();
  EXPECT_EQ(usage.entries, 0u);
  EXPECT_EQ(usage.hashes, 0u);
  EXPECT_EQ(usage.leases, 0u);
}

TEST(RegistryTableTest, SlotsOfEndedLeasesAreUsedAgain) {
  RegistryTable table({.max_leases = 2});
  for (int round = 0; round < 20; ++round) {
    const Now now = kStart + round * 60s;
    ASSERT_EQ(publish_one(table, terms_of(1), item_of("a"), now), 0u) << round;
    ASSERT_EQ(publish_one(table, terms_of(2), item_of("a"), now), 0u) << round;
    EXPECT_EQ(publish_one(table, terms_of(3), item_of("a"), now),
              100 + static_cast<uint64_t>(Code::kLimit));
    table.sweep(64, now);
  }
}

TEST(RegistryTableTest, EveryBoundRefusesTheNextEntryAndNothingElse) {
  RegistryTable table({.max_entries = 3, .max_producers = 2, .max_leases = 8});
  EXPECT_EQ(publish_one(table, terms_of(1), item_of("a")), 0u);
  EXPECT_EQ(publish_one(table, terms_of(2), item_of("a")), 0u);
  EXPECT_EQ(publish_one(table, terms_of(3), item_of("a")), static_cast<uint64_t>(Code::kLimit));
  const PublishTerms four = terms_of(4, 5s);
  EXPECT_EQ(publish_one(table, four, item_of("b")), 0u);
  EXPECT_EQ(publish_one(table, four, item_of("b", 6)), 0u) << "a replacement needs no room";
  EXPECT_EQ(publish_one(table, terms_of(5), item_of("c")), static_cast<uint64_t>(Code::kLimit));
  EXPECT_EQ(publish_one(table, terms_of(6), item_of("c"), kStart + 6s), 0u)
      << "what has ended makes room";

  RegistryTable small({.max_bytes = 1000});
  const PublishTerms terms = terms_of(1);
  uint64_t taken = 0;
  while (publish_one(small, terms, item_of(std::string(100, 'x') + std::to_string(taken))) == 0) {
    ++taken;
  }
  EXPECT_GE(taken, 1u);
  EXPECT_LE(taken, 4u);
}

struct BadItem {
  const char* what;
  PublishedItem item;
  Code code;
};

TEST(RegistryTableTest, EntriesThatCannotBeAreRefusedByField) {
  const auto make = [](std::string mm_hash, uint64_t nbytes, std::vector<uint64_t> shape,
                       std::string dtype) {
    return PublishedItem{std::move(mm_hash), {nbytes, std::move(shape), std::move(dtype)}, 1};
  };
  const uint64_t most = 0xffff'ffff;
  const std::vector<BadItem> bad = {
      {"mm_hash", make("", 2, {1}, "bfloat16"), Code::kInvalidArgument},
      {"mm_hash", make(std::string(257, 'a'), 2, {1}, "bfloat16"), Code::kInvalidArgument},
      {"mm_hash", make("a\nb", 2, {1}, "bfloat16"), Code::kInvalidArgument},
      {"mm_hash", make("\xff", 2, {1}, "bfloat16"), Code::kInvalidArgument},
      {"dtype", make("a", 2, {1}, "torch.bfloat16"), Code::kInvalidArgument},
      {"shape", make("a", 0, {0, 8}, "bfloat16"), Code::kInvalidArgument},
      {"shape", make("a", 2, {most + 1}, "bfloat16"), Code::kInvalidArgument},
      {"shape", make("a", 2, {most, most, most}, "bfloat16"), Code::kInvalidArgument},
      {"shape", make("a", 2, std::vector<uint64_t>(9, 1), "bfloat16"), Code::kInvalidArgument},
      {"nbytes", make("a", 63, {4, 8}, "bfloat16"), Code::kIncompatible},
  };
  RegistryTable table;
  const PublishTerms terms = terms_of(1);
  for (const BadItem& each : bad) {
    auto outcome = table.publish(terms, std::span(&each.item, 1), kStart);
    ASSERT_TRUE(outcome.ok());
    EXPECT_EQ(outcome->items[0].code(), each.code) << each.what;
    EXPECT_NE(outcome->items[0].message().find(each.what), std::string_view::npos);
  }
  EXPECT_EQ(publish_one(table, terms, make(std::string(256, 'a'), most, {most}, "int8")), 0u);
  EXPECT_EQ(publish_one(table, terms, make("scalar", 4, {}, "float32")), 0u);
  for (const char* address : {"", "127.0.0.1:1", "tcp://127.0.0.1", "tcp://127.0.0.1:0",
                              "tcp://0.0.0.0:1", "tcp://*:1", "tcp://::1:1", "tcp://a\"b:1"}) {
    PublishTerms wrong = terms;
    wrong.producer_zmq = address;
    EXPECT_EQ(publish_one(table, wrong, item_of("a")),
              100 + static_cast<uint64_t>(Code::kInvalidArgument))
        << address;
  }
  PublishTerms six = terms_of(1);
  six.producer_zmq = "tcp://[fe80::1%eth0]:5000";
  EXPECT_EQ(publish_one(table, six, item_of("a")), 0u);
}

TEST(RegistryTableTest, AnEntryCostsLessThanFourHundredBytes) {
  if (stagelink::test::kSanitized) GTEST_SKIP() << "a sanitizer's allocator has sizes of its own";
  constexpr uint64_t kEntries = 20'000;
  const size_t before = ::mallinfo2().uordblks;
  RegistryTable table;
  const PublishTerms terms = terms_of(1);
  for (uint64_t i = 0; i < kEntries; ++i) {
    // As long as the hashes of vLLM.
    ASSERT_EQ(publish_one(table, terms, item_of(fmt::format("{:064x}", i))), 0u);
  }
  const size_t real = ::mallinfo2().uordblks - before;
  EXPECT_LT(real / kEntries, 400u);
  // What the table says of itself is what it takes.
  EXPECT_NEAR(static_cast<double>(table.usage().bytes), static_cast<double>(real),
              0.15 * static_cast<double>(real));
}

}  // namespace
}  // namespace stagelink::encoder_cache::test
