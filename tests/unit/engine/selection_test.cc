#include "transport/selection.h"

#include <gtest/gtest.h>

namespace stagelink::transport {
namespace {

RouteFacts all_good() {
  RouteFacts facts;
  facts.shm_enabled = facts.same_host = facts.shareable = true;
  facts.stream = TransportKind::kStream;
  facts.mapping = Status();
  return facts;
}

TEST(SelectionTest, MappedMemoryIsCopied) {
  EXPECT_EQ(select_route(all_good()).kind, TransportKind::kShm);
}

TEST(SelectionTest, EachFactThatIsMissingMeansTheSocketAndIsNamed) {
  RouteFacts facts = all_good();
  facts.shm_enabled = false;
  EXPECT_EQ(select_route(facts).kind, TransportKind::kStream);
  EXPECT_NE(select_route(facts).why.find("not among the engine's transports"), std::string::npos);
  facts = all_good();
  facts.shareable = false;
  EXPECT_EQ(select_route(facts).kind, TransportKind::kStream);
  EXPECT_NE(select_route(facts).why.find("registered"), std::string::npos);
  facts = all_good();
  facts.mapping = Status(Reason::kNoSpace, "no room at all");
  EXPECT_EQ(select_route(facts).kind, TransportKind::kStream);
  EXPECT_NE(select_route(facts).why.find("no room at all"), std::string::npos);
}

TEST(SelectionTest, OverTcpNothingIsSharedAndTheStreamGoesThere) {
  RouteFacts facts = all_good();
  facts.same_host = false;
  facts.stream = TransportKind::kTcp;
  EXPECT_EQ(select_route(facts).kind, TransportKind::kTcp);
  EXPECT_NE(select_route(facts).why.find("over TCP"), std::string::npos);
}

TEST(SelectionTest, WithoutAnyTransportBothReasonsAreGiven) {
  RouteFacts facts = all_good();
  facts.shareable = false;
  facts.stream = std::nullopt;
  const Route route = select_route(facts);
  EXPECT_EQ(route.kind, std::nullopt);
  EXPECT_NE(route.why.find("registered"), std::string::npos);
  EXPECT_NE(route.why.find("unix"), std::string::npos);
}

// A pure function of its facts: the whole table.
TEST(SelectionTest, ChosenTransportIsAlwaysEnabledAndPossible) {
  for (unsigned bits = 0; bits < 32; ++bits) {
    RouteFacts facts;
    facts.shm_enabled = (bits & 1) != 0;
    if ((bits & 2) != 0) facts.stream = TransportKind::kTcp;
    facts.same_host = (bits & 4) != 0;
    facts.shareable = (bits & 8) != 0;
    if ((bits & 16) != 0) facts.mapping = Status();
    const Route route = select_route(facts);
    EXPECT_FALSE(route.why.empty());
    const bool shm = (bits & 0b11101) == 0b11101;
    const bool stream = !shm && (bits & 0b00010) != 0;
    EXPECT_EQ(route.kind == TransportKind::kShm, shm) << bits;
    EXPECT_EQ(route.kind == TransportKind::kTcp, stream) << bits;
  }
}

}  // namespace
}  // namespace stagelink::transport
