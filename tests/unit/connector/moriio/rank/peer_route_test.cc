#include "connector/moriio/rank/peer_route.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace stagelink::moriio {
namespace {

PeerAddress peer(uint32_t tp_size) {
  PeerAddress address;
  address.host = "host";
  address.handshake_port = 6000;
  address.notify_port = 7000;
  address.tp_size = tp_size;
  return address;
}

std::vector<PeerRoute> must(Result<std::vector<PeerRoute>> routes) {
  EXPECT_TRUE(routes.ok()) << routes.status().message();
  return routes.ok() ? *std::move(routes) : std::vector<PeerRoute>();
}

std::vector<uint32_t> ranks(const std::vector<PeerRoute>& routes) {
  std::vector<uint32_t> found;
  for (const PeerRoute& route : routes) found.push_back(route.tp_rank);
  return found;
}

TEST(PeerRouteTest, EqualSizesPairRanksAndMoveWholeBlocks) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const auto routes = must(routes_as_consumer({rank, 4, 8}, peer(4)));
    ASSERT_EQ(ranks(routes), std::vector{rank});
    EXPECT_FALSE(routes[0].slice.has_value());
    EXPECT_EQ(routes[0].handshake.port, 6000 + rank);
    EXPECT_EQ(routes[0].notify.port, 7000 + rank);
  }
}

TEST(PeerRouteTest, AnUnknownSizeIsAsOurs) {
  EXPECT_EQ(ranks(must(routes_as_consumer({3, 4, 8}, peer(0)))), std::vector{3U});
}

TEST(PeerRouteTest, AConsumerTakesItsHeadsFromEveryRankThatHasSome) {
  const auto routes = must(routes_as_consumer({1, 2, 8}, peer(4)));
  ASSERT_EQ(ranks(routes), (std::vector{2U, 3U}));
  EXPECT_EQ(routes[0].slice, (block_layout::HeadSlice{0, 0, 2}));
  EXPECT_EQ(routes[1].slice, (block_layout::HeadSlice{2, 0, 2}));
}

TEST(PeerRouteTest, AConsumerTakesAPartOfABiggerRank) {
  const auto routes = must(routes_as_consumer({3, 4, 8}, peer(2)));
  ASSERT_EQ(ranks(routes), std::vector{1U});
  EXPECT_EQ(routes[0].slice, (block_layout::HeadSlice{0, 2, 2}));
}

TEST(PeerRouteTest, WithMlaEveryRankHasAllAndOneIsTaken) {
  const auto routes = must(routes_as_consumer({0, 1, 1}, peer(4)));
  ASSERT_EQ(routes.size(), 1U);
  EXPECT_FALSE(routes[0].slice.has_value());
}

TEST(PeerRouteTest, RanksThatNobodyReadsAreReleasedAllTheSame) {
  EXPECT_EQ(ranks(must(ranks_to_release({0, 1, 1}, peer(4)))).size(), 4U);
  std::vector<uint32_t> told;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (const uint32_t found : ranks(must(ranks_to_release({rank, 2, 1}, peer(8))))) {
      told.push_back(found);
    }
  }
  std::sort(told.begin(), told.end());
  EXPECT_EQ(told, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(PeerRouteTest, AProducerGivesToWhoTakesFromIt) {
  constexpr uint32_t kHeads = 8;
  for (const auto& [ours, theirs] : {std::pair{4U, 2U}, {2U, 4U}, {4U, 4U}, {8U, 1U}}) {
    for (uint32_t rank = 0; rank < ours; ++rank) {
      for (const PeerRoute& route : must(routes_as_producer({rank, ours, kHeads}, peer(theirs)))) {
        const auto back =
            ranks(must(routes_as_consumer({route.tp_rank, theirs, kHeads}, peer(ours))));
        EXPECT_NE(std::find(back.begin(), back.end(), rank), back.end())
            << rank << " of " << ours << " to " << route.tp_rank << " of " << theirs;
      }
    }
  }
}

TEST(PeerRouteTest, ADataParallelRankIsFoldedIntoItsPod) {
  PeerAddress address = peer(2);
  address.hosts = {"pod-0", "pod-1"};
  address.dp_rank = 3;
  address.dp_size_local = 2;
  const auto routes = must(routes_as_consumer({1, 2, 8}, address));
  ASSERT_EQ(routes.size(), 1U);
  EXPECT_EQ(routes[0].handshake.host, "pod-1");
  EXPECT_EQ(routes[0].notify.port, 7000 + 1 * 2 + 1);
}

TEST(PeerRouteTest, SizesThatDoNotDivideOneAnotherAreRefused) {
  EXPECT_EQ(routes_as_consumer({0, 2, 8}, peer(3)).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace stagelink::moriio
