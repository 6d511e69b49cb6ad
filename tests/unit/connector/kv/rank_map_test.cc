#include "connector/kv/rank_map.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagelink::kv {
namespace {

using testing::HasSubstr;
using Ranks = std::vector<uint32_t>;

Ranks ranks_of(const std::vector<RankRoute>& routes) {
  Ranks out;
  for (const RankRoute& route : routes) out.push_back(route.rank);
  return out;
}

TEST(RankMapTest, SendersAndReceiversAreThoseOfVllmOmni) {
  auto four_two = RankMap::create({4, 2});
  ASSERT_TRUE(four_two.ok());
  EXPECT_EQ(ranks_of(*four_two->sends(3)), (Ranks{1}));
  EXPECT_EQ(ranks_of(*four_two->gets(1)), (Ranks{2, 3}));
  auto one_four = RankMap::create({1, 4});
  EXPECT_EQ(ranks_of(*one_four->sends(0)), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ((*one_four->sends(0))[2].ours, (HeadShare{2, 1, 4}));
  EXPECT_EQ(ranks_of(*one_four->gets(3)), (Ranks{0}));
  auto equal = RankMap::create({4, 4});
  EXPECT_EQ(ranks_of(*equal->sends(2)), (Ranks{2}));
  EXPECT_TRUE((*equal->sends(2))[0].ours.whole());
}

TEST(RankMapTest, EveryMapOfEveryKindIsProven) {
  for (uint32_t from = 1; from <= 16; ++from) {
    for (uint32_t to = 1; to <= 16; ++to) {
      const bool divides = from % to == 0 || to % from == 0;
      for (const uint32_t heads : {0U, 1U, 2U, 4U, 8U, 16U, 48U}) {
        auto map = RankMap::create({from, to, heads, false});
        const auto fits = [&](uint32_t tp) {
          return heads == 0 || heads % tp == 0 || tp % heads == 0;
        };
        EXPECT_EQ(map.ok(), divides && fits(from) && fits(to)) << from << " " << to << " " << heads;
      }
      EXPECT_EQ(RankMap::create({from, to, 0, true}).ok(), divides);
    }
  }
}

TEST(RankMapTest, CopiesOfHeadsAreReadOnceAndNeverJoined) {
  auto shrink = RankMap::create({4, 1, 2, false});  // Ranks 0 and 1 both hold head 0.
  ASSERT_TRUE(shrink.ok());
  EXPECT_EQ(shrink->gets(0)->size(), 2U);
  EXPECT_EQ(shrink->payloads(), 2U);
  EXPECT_THAT(shrink->fan(), HasSubstr("2 senders hold copies that nobody reads"));
  auto grow = RankMap::create({2, 8, 2, false});
  for (uint32_t to = 0; to < 8; ++to) {
    EXPECT_EQ(ranks_of(*grow->gets(to)), (Ranks{to / 4}));
    EXPECT_TRUE((*grow->gets(to))[0].ours.whole());
  }
}

TEST(RankMapTest, OfMlaEachReceiverGetsOneWhole) {
  for (const auto& [from, to] : {std::pair(4U, 2U), std::pair(2U, 4U), std::pair(4U, 4U)}) {
    auto map = RankMap::create({from, to, 0, true});
    for (uint32_t rank = 0; rank < to; ++rank) {
      ASSERT_EQ(map->gets(rank)->size(), 1U);
      EXPECT_TRUE((*map->gets(rank))[0].theirs.whole());
    }
    EXPECT_EQ(map->payloads(), to);
  }
}

TEST(RankMapTest, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(RankMap::create({4, 3}).status().to_string(),
              HasSubstr("must be divisible: source_tp_size=4, target_tp_size=3"));
  EXPECT_THAT(RankMap::create({0, 1}).status().to_string(), HasSubstr("from_tp is 0"));
  EXPECT_THAT(RankMap::create({1, 1025}).status().to_string(), HasSubstr("to_tp is 1025"));
  EXPECT_TRUE(RankMap::create({1, 1024}).ok());
  EXPECT_THAT(RankMap::create({4, 2, 6, false}).status().to_string(), HasSubstr("6 KV heads"));
  EXPECT_THAT(RankMap::create({2, 2})->sends(2).status().to_string(), HasSubstr("sender rank 2"));
}

TEST(RankMapTest, ARankThatNobodyStatedIsNeverZeroAmongSeveral) {
  EXPECT_EQ(*stated_rank(-1, 1, "sender"), 0U);
  EXPECT_THAT(stated_rank(-1, 2, "sender").status().to_string(),
              HasSubstr("the sender has 2 ranks and nobody has said which one this is"));
  EXPECT_EQ(*stated_rank(1, 2, "sender"), 1U);
  EXPECT_FALSE(stated_rank(2, 2, "sender").ok());
  EXPECT_FALSE(stated_rank(-2, 2, "sender").ok());
}

TEST(RankMapTest, KeysAreThoseOfVllmOmni) {
  EXPECT_EQ(kv_key({1, 1}, "req", {"0", "1"}, 0, 0), "omni_0_to_1_kv_cache_req");
  EXPECT_EQ(kv_key({4, 2}, "req", {"0", "1"}, 3, 1), "req_0_0_3_1");
}

TEST(RankMapTest, ItSaysInWordsWhoReadsWhat) {
  auto map = RankMap::create({4, 2});
  EXPECT_EQ(map->fan(), "2 senders to each receiver");
  EXPECT_EQ(map->lines()[1], "rank 1 <- rank 2 (all of it), rank 3 (all of it)");
  EXPECT_EQ(RankMap::create({1, 4})->lines()[3], "rank 3 <- rank 0 (part 3 of 4)");
  EXPECT_EQ(RankMap::create({4, 4})->fan(), "one to one");
}

}  // namespace
}  // namespace stagelink::kv
