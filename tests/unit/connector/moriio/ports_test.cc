#include "connector/moriio/ports.h"

#include <numeric>
#include <set>

#include <gtest/gtest.h>

namespace stagelink::moriio {
namespace {

constexpr uint32_t kSizes[] = {1, 2, 3, 4, 6, 8, 12, 16};

bool names(const Status& status, std::string_view field) {
  return status.message().find(field) != std::string_view::npos;
}

TEST(PortsTest, EveryRankOfAPodHasItsOwnPort) {
  for (uint32_t tp_size = 1; tp_size <= 16; ++tp_size) {
    for (uint32_t dp_size = 1; dp_size <= 16; ++dp_size) {
      std::set<uint32_t> offsets;
      for (uint32_t dp = 0; dp < dp_size; ++dp) {
        for (uint32_t tp = 0; tp < tp_size; ++tp) {
          offsets.insert(*port_offset({.dp_local = dp, .tp = tp, .tp_size = tp_size}));
        }
      }
      EXPECT_EQ(offsets.size(), size_t{tp_size} * dp_size);
      EXPECT_EQ(*offsets.rbegin(), tp_size * dp_size - 1);  // And none is wasted.
    }
  }
}

TEST(PortsTest, AreThoseOfVllmWithOneDataOrOneTensorRank) {
  for (uint32_t rank = 0; rank < 64; ++rank) {
    EXPECT_EQ(*port_offset({.dp_local = 0, .tp = rank, .tp_size = 64}), rank);
    EXPECT_EQ(*port_offset({.dp_local = rank, .tp = 0, .tp_size = 1}), rank);
  }
}

TEST(PortsTest, ARankOutOfRangeIsNamed) {
  EXPECT_TRUE(port_offset({.dp_local = 0, .tp = 7, .tp_size = 8}).ok());
  EXPECT_TRUE(names(port_offset({.dp_local = 0, .tp = 8, .tp_size = 8}).status(), "tp_rank is 8"));
  EXPECT_TRUE(names(port_offset({.dp_local = 0, .tp = 0, .tp_size = 0}).status(), "tp_size is 0"));
  EXPECT_TRUE(port_offset({.dp_local = 65535}).ok());
  EXPECT_TRUE(names(port_offset({.dp_local = 65536}).status(), "dp_rank is 65536"));
}

TEST(PortsTest, APortEndsAt65535) {
  EXPECT_EQ(*rank_port(65528, {.dp_local = 0, .tp = 7, .tp_size = 8}), 65535);
  EXPECT_EQ(rank_port(65529, {.dp_local = 0, .tp = 7, .tp_size = 8}).status().reason(),
            Reason::kNoPorts);
  EXPECT_EQ(*rank_port(1, {}), 1);
  EXPECT_FALSE(rank_port(0, {}).ok());
  EXPECT_FALSE(rank_port(65536, {}).ok());
}

TEST(PortsTest, RanksFoldIntoPods) {
  EXPECT_EQ(fold_dp_rank(9, 4), 1U);
  EXPECT_EQ(pod_of(9, 4), 2U);
  EXPECT_EQ(fold_dp_rank(9, 0), 9U);  // Unknown: one pod.
  EXPECT_EQ(pod_of(9, 0), 0U);
}

TEST(PortsTest, EqualSizesGiveEachRankExactlyOneSource) {
  for (const uint32_t size : kSizes) {
    std::set<uint32_t> sources;
    for (uint32_t rank = 0; rank < size; ++rank) {
      EXPECT_EQ(*remote_tp_rank(rank, size, size), rank);
      EXPECT_EQ(*remote_tp_rank(rank, size, 0), rank);  // Unknown is as ours.
      sources.insert(*remote_tp_rank(rank, size, size));
    }
    EXPECT_EQ(sources.size(), size);
  }
}

// What the producer waits for is what the consumers do.
TEST(PortsTest, BothSidesAgreeWhoWorksWithWhom) {
  for (const uint32_t producers : kSizes) {
    for (const uint32_t consumers : kSizes) {
      if (producers % consumers != 0 && consumers % producers != 0) continue;
      uint32_t total = 0;
      for (uint32_t rank = 0; rank < producers; ++rank) {
        const auto expected = *consumer_tp_ranks(rank, producers, consumers);
        for (const uint32_t consumer : expected) {
          EXPECT_EQ(*remote_tp_rank(consumer, consumers, producers), rank);
        }
        if (!expected.empty()) {
          EXPECT_EQ(expected.size(), *expected_ack_count(producers, consumers));
        }
        total += static_cast<uint32_t>(expected.size());
      }
      EXPECT_EQ(total, consumers);
    }
  }
}

TEST(PortsTest, SizesThatDoNotDivideAreRefusedByName) {
  for (const Status& status :
       {remote_tp_rank(0, 4, 6).status(), consumer_tp_ranks(0, 4, 6).status(),
        expected_ack_count(4, 6).status()}) {
    EXPECT_EQ(status.reason(), Reason::kInvalidArgument);
    EXPECT_TRUE(names(status, "4") && names(status, "6")) << status.to_string();
  }
  EXPECT_TRUE(names(remote_tp_rank(4, 4, 4).status(), "tp_rank is 4"));
}

}  // namespace
}  // namespace stagelink::moriio
