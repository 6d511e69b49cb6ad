#include "connector/block_layout/head_map.h"

#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "connector/block_layout/compatibility.h"

namespace stagelink::block_layout {
namespace {

constexpr uint32_t kSizes[] = {1, 2, 3, 4, 6, 8, 16};

bool divides(uint32_t a, uint32_t b) { return a % b == 0 || b % a == 0; }

TEST(HeadMapTest, EqualSizesGiveEachRankItself) {
  for (const uint32_t total : kSizes) {
    for (const uint32_t size : kSizes) {
      if (!divides(total, size)) continue;
      for (uint32_t rank = 0; rank < size; ++rank) {
        const auto heads = *heads_of_rank(total, size, rank);
        EXPECT_EQ(*routes_to({total, size, size}, rank),
                  (std::vector<HeadRoute>{{rank, {0, 0, heads.count}}}));
      }
    }
  }
}

TEST(HeadMapTest, EveryHeadOfADestinationHasOneSourceThatHasIt) {
  for (const uint32_t total : kSizes) {
    for (const uint32_t sources : kSizes) {
      for (const uint32_t destinations : kSizes) {
        if (!divides(total, sources) || !divides(total, destinations) ||
            !divides(sources, destinations)) {
          continue;
        }
        for (uint32_t rank = 0; rank < destinations; ++rank) {
          const auto mine = *heads_of_rank(total, destinations, rank);
          uint32_t next = 0;
          const auto routes = *routes_to({total, sources, destinations}, rank);
          for (const HeadRoute& route : routes) {
            EXPECT_EQ(route.slice.local_first, next);
            next += route.slice.count;
            const auto theirs = *heads_of_rank(total, sources, route.remote_rank);
            EXPECT_EQ(mine.first + route.slice.local_first,
                      theirs.first + route.slice.remote_first);
            EXPECT_LE(route.slice.remote_first + route.slice.count, theirs.count);
          }
          EXPECT_EQ(next, mine.count);
        }
      }
    }
  }
}

TEST(HeadMapTest, BothSidesSeeTheSamePairs) {
  for (const uint32_t total : kSizes) {
    for (const uint32_t sources : kSizes) {
      for (const uint32_t destinations : kSizes) {
        const TpPair pair{total, sources, destinations};
        if (!routes_to(pair, 0).ok()) continue;
        std::map<std::pair<uint32_t, uint32_t>, uint32_t> pulled;
        std::map<std::pair<uint32_t, uint32_t>, uint32_t> pushed;
        for (uint32_t rank = 0; rank < destinations; ++rank) {
          const auto routes = *routes_to(pair, rank);
          for (const auto& route : routes) {
            pulled[{route.remote_rank, rank}] += route.slice.count;
          }
        }
        for (uint32_t rank = 0; rank < sources; ++rank) {
          const auto routes = *routes_from(pair, rank);
          for (const auto& route : routes) {
            pushed[{rank, route.remote_rank}] += route.slice.count;
          }
        }
        EXPECT_EQ(pulled, pushed);
      }
    }
  }
}

TEST(HeadMapTest, CopiesOfAHeadShareTheDestinations) {
  // 2 heads on 8 ranks, wanted by 4: each source serves at most one of them.
  std::map<uint32_t, int> served;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const auto routes = *routes_to({2, 8, 4}, rank);
    for (const auto& route : routes) ++served[route.remote_rank];
  }
  EXPECT_EQ(served.size(), 4U);
  EXPECT_TRUE(routes_from({2, 8, 4}, 1)->empty());
}

TEST(HeadMapTest, SizesThatDoNotDivideAreRefusedByName) {
  const auto has = [](const Status& status, std::string_view text) {
    return status.message().find(text) != std::string_view::npos;
  };
  EXPECT_TRUE(has(routes_to({8, 3, 4}, 0).status(), "8 KV heads and source tp_size 3"));
  EXPECT_TRUE(has(routes_to({12, 6, 4}, 0).status(), "source tp_size 6 and destination tp_size 4"));
  EXPECT_TRUE(has(routes_to({8, 4, 2}, 2).status(), "destination rank is 2"));
  EXPECT_TRUE(has(routes_from({8, 4, 2}, 4).status(), "source rank is 4"));
  EXPECT_FALSE(heads_of_rank(8, 4, 4).ok());
  EXPECT_FALSE(heads_of_rank(0, 1, 0).ok());
}

Description description() {
  return {{"model", "m"},    {"dtype", "bfloat16"}, {"block_size", "16"}, {"layout", "rows"},
          {"isa", "avx512"}, {"attn_backend", "X"}, {"kv_heads", "8"},    {"head_dim", "128"},
          {"layers", "32"},  {"protocol", "1"},     {"tp_size", "8"},     {"num_blocks", "100"}};
}

TEST(CompatibilityTest, EachFieldThatDiffersIsOneLine) {
  for (const auto& [field, value] : description()) {
    if (field == "num_blocks") continue;
    auto theirs = description();
    theirs[field] = field == "tp_size" ? "3" : "other";
    const auto lines = differences(description(), theirs);
    ASSERT_EQ(lines.size(), 1U) << field;
    EXPECT_EQ(lines[0], field + ": ours " + value + ", theirs " + theirs[field]);
    EXPECT_EQ(check_compatible(description(), theirs).reason(), Reason::kIncompatible);
  }
}

TEST(CompatibilityTest, OtherNumbersOfBlocksAndTpSizesThatDivideAreFine) {
  auto theirs = description();
  theirs["num_blocks"] = "7";
  theirs["tp_size"] = "4";
  EXPECT_TRUE(check_compatible(description(), theirs).ok());
  EXPECT_EQ(compat_hash(description()), compat_hash(theirs));
}

TEST(CompatibilityTest, AFieldOfOneSideAloneDoesNotCount) {
  auto theirs = description();
  theirs["of_a_later_minor"] = "x";
  theirs.erase("isa");
  EXPECT_TRUE(differences(description(), theirs).empty());
}

TEST(CompatibilityTest, TheHashIsFixedAndSeesEveryField) {
  EXPECT_EQ(compat_hash({{"dtype", "bfloat16"}, {"model", "m"}}), "3937992903ae4e92");
  for (const auto& [field, value] : description()) {
    auto theirs = description();
    theirs[field] += "x";
    EXPECT_EQ(compat_hash(theirs) != compat_hash(description()),
              field != "tp_size" && field != "num_blocks")
        << field;
  }
  EXPECT_NE(compat_hash({{"a", "bc"}}), compat_hash({{"ab", "c"}}));
}

TEST(CompatibilityTest, ForeignTextStaysOnItsLine) {
  const auto lines = differences({{"model", "m"}}, {{"model", "a\nb" + std::string(999, 'x')}});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].find('\n'), std::string::npos);
  EXPECT_LT(lines[0].size(), 200U);
}

}  // namespace
}  // namespace stagelink::block_layout
