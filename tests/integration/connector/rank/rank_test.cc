// Ranks of a connector: handshake, plan, transfer and the end of it, for whole requests.

#include "connector/moriio/rank/rank.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "integration/support/engine_test.h"
#include "integration/support/sanitized.h"

namespace stagelink::test {
namespace {

using moriio::BlockSpan;
using moriio::CacheLayer;
using moriio::EventKind;
using moriio::GroupBlocks;
using moriio::IoEngine;
using moriio::PeerAddress;
using moriio::Rank;
using moriio::RankCache;
using moriio::RankEvent;
using moriio::Role;

constexpr uint64_t kBlocks = 8;
constexpr uint64_t kTokens = 4;
constexpr uint64_t kContent = 16;
constexpr Duration kLong = 30s;

uint16_t free_port() {
  const auto library = must(zmq::Library::load());
  return must(zmq::Router::bind(must(zmq::Context::create(library)), {})).endpoint().port;
}

struct Shape {
  Role role = Role::kProducer;
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  uint32_t heads = 2;  // Of the model.
  std::string block_size = "4";
  uint16_t handshake_port = 0;
  uint16_t notify_port = 0;
};

// A rank with a cache of two layers, one for each of two groups, each byte of which is known.
class CacheRank {
 public:
  CacheRank(const EngineOptions& options, const Shape& shape)
      : shape_(shape), own_heads_(std::max(shape.heads / shape.tp_size, 1U)) {
    engine_ = must(IoEngine::create(options.name, {.host = "127.0.0.1", .engine = options}));
    must_be_ok(engine_->create_backend(moriio::BackendType::kRdma));
    memory_.resize(2 * layer_bytes());
    moriio::RankOptions rank;
    rank.role = shape.role;
    rank.place = {shape.tp_rank, shape.tp_size, shape.heads};
    rank.host = "127.0.0.1";
    rank.handshake_port = shape.handshake_port;
    rank.notify_port = shape.notify_port;
    rank_ = std::make_unique<Rank>(rank, engine_);
    must_be_ok(rank_->serve(cache()));
  }
  ~CacheRank() {
    rank_->close();
    (void)engine_->close();
  }
  CacheRank(const CacheRank&) = delete;
  CacheRank& operator=(const CacheRank&) = delete;

  Rank& rank() { return *rank_; }
  std::byte* block(uint64_t layer, uint64_t id) {
    return memory_.data() + layer * layer_bytes() + id * block_bytes();
  }
  uint64_t block_bytes() const { return own_heads_ * kTokens * kContent; }
  void fill(uint64_t layer, uint64_t id, int value) {
    std::memset(block(layer, id), value, block_bytes());
  }
  bool holds(uint64_t layer, uint64_t id, int value) {
    const std::byte* const bytes = block(layer, id);
    return std::all_of(bytes, bytes + block_bytes(),
                       [&](std::byte byte) { return byte == std::byte(value); });
  }
  PeerAddress address() const {
    PeerAddress peer;
    peer.host = "127.0.0.1";
    peer.handshake_port = shape_.handshake_port;
    peer.notify_port = shape_.notify_port;
    peer.tp_size = shape_.tp_size;
    return peer;
  }

 private:
  static void must_be_ok(const Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }
  uint64_t layer_bytes() const { return kBlocks * block_bytes(); }
  CacheLayer layer(uint32_t index) const {
    const uint64_t row = kTokens * kContent;
    CacheLayer made{fmt::format("layer.{}", index), index, 0, index * layer_bytes(), {}, {}};
    made.tensor = {
        {kBlocks, own_heads_, kTokens, kContent}, {own_heads_ * row, row, kContent, 1}, 1};
    made.spec.block_size = kTokens;
    made.spec.num_kv_heads = static_cast<uint32_t>(own_heads_);
    made.spec.content_bytes = kContent;
    made.spec.layout = block_layout::Layout::kRows;
    return made;
  }
  RankCache cache() {
    RankCache made;
    made.memories = {must(engine_->register_memory(memory_.data(), memory_.size(), -1,
                                                   moriio::MemoryLocation::kCpu))};
    made.layers = {layer(0), layer(1)};
    made.groups = 2;
    made.total_kv_heads = shape_.heads;
    made.tp_rank = shape_.tp_rank;
    made.tp_size = shape_.tp_size;
    made.engine_id = "engine";
    made.attn_backend_name = "TEST";
    made.compat = {{"block_size", shape_.block_size}, {"isa", "any"}};
    return made;
  }

  const Shape shape_;
  const uint64_t own_heads_;
  std::vector<std::byte> memory_;
  std::shared_ptr<IoEngine> engine_;
  std::unique_ptr<Rank> rank_;
};

class RankTest : public EngineTest {
 protected:
  Shape shape(Role role) const {
    Shape made;
    made.role = role;
    made.handshake_port = free_port();
    made.notify_port = free_port();
    return made;
  }
  std::unique_ptr<CacheRank> make(const Shape& shape) {
    return std::make_unique<CacheRank>(options(fmt::format("rank-{}", count_++)), shape);
  }
  static RankEvent next(Rank& rank) {
    std::vector<RankEvent> events;
    EXPECT_TRUE(eventually(
        [&] {
          for (const Endpoint& place : rank.take_wanted()) {
            const Status made = rank.connect(std::vector{place}, kLong)[0];
            if (!made.ok()) rank.refuse_link(place, made);
          }
          for (RankEvent& event : rank.take_events()) events.push_back(std::move(event));
          return !events.empty();
        },
        kLong));
    return events.empty() ? RankEvent() : events.front();
  }
  static Status link(Rank& rank, const PeerAddress& peer) {
    std::vector<Endpoint> places;
    for (const auto& route : must(rank.producers(peer))) places.push_back(route.handshake);
    for (const Status& made : rank.connect(places, kLong)) SL_TRY(made);
    return {};
  }
  int count_ = 0;
};

TEST_F(RankTest, AReadBringsTheBlocksOfEachGroupAndReleasesTheProducer) {
  const auto producer = make(shape(Role::kProducer));
  const auto consumer = make(shape(Role::kConsumer));
  for (uint64_t id = 0; id < kBlocks; ++id) {
    producer->fill(0, id, static_cast<int>(10 + id));
    producer->fill(1, id, static_cast<int>(20 + id));
  }
  ASSERT_OK(producer->rank().offer("tx", "", 0));
  ASSERT_OK(link(consumer->rank(), producer->address()));
  const std::vector<GroupBlocks> blocks{{{1, 2}, {5, 4}}, {{7, 0}, {3, 2}}};
  ASSERT_OK(consumer->rank().read("tx", producer->address(), blocks, kLong));
  const RankEvent received = next(consumer->rank());
  EXPECT_EQ(received.event.kind, EventKind::kReceived);
  ASSERT_OK(received.event.outcome);
  EXPECT_EQ(received.bytes, 3 * consumer->block_bytes());
  EXPECT_TRUE(consumer->holds(0, 1, 15));
  EXPECT_TRUE(consumer->holds(0, 2, 14));
  EXPECT_TRUE(consumer->holds(1, 7, 23));
  EXPECT_TRUE(consumer->holds(1, 0, 0)) << "the null block was moved";
  EXPECT_EQ(next(producer->rank()).event.kind, EventKind::kSent);
}

TEST_F(RankTest, AWriteBringsEachChunkToWhereTheConsumerSaid) {
  const auto producer = make(shape(Role::kProducer));
  const auto consumer = make(shape(Role::kConsumer));
  producer->fill(0, 1, 11);
  producer->fill(0, 2, 12);
  producer->fill(0, 3, 13);
  producer->fill(1, 4, 14);
  Rank& from = producer->rank();
  ASSERT_OK(from.start_write("tx", "request", consumer->address(), "secret"));
  const uint32_t first = must(from.add_chunk("tx", {{0, {1, 2}}, {0, {}}}, false));
  ASSERT_OK(from.write_layer("tx", first, 0, nullptr));
  ASSERT_OK(link(consumer->rank(), producer->address()));
  // The first block is cached there; the second group has a window over its last block.
  ASSERT_OK(consumer->rank().receive("tx", producer->address(),
                                     {"request", "secret", {{1, {5, 6}}, {2, {7}}}}));
  const uint32_t last = must(from.add_chunk("tx", {{2, {3}}, {2, {4}}}, true));
  ASSERT_OK(from.write_layer("tx", last, 0, nullptr));
  ASSERT_OK(from.write_layer("tx", last, 1, nullptr));
  from.seal("tx");
  EXPECT_OK(next(from).event.outcome);
  const RankEvent received = next(consumer->rank());
  EXPECT_EQ(received.event.kind, EventKind::kReceived);
  ASSERT_OK(received.event.outcome);
  EXPECT_TRUE(consumer->holds(0, 5, 12));
  EXPECT_TRUE(consumer->holds(0, 6, 13));
  EXPECT_TRUE(consumer->holds(1, 7, 14));
}

TEST_F(RankTest, ABlockThatTheProducerLacksFailsTheTransferOnBothSides) {
  const auto producer = make(shape(Role::kProducer));
  const auto consumer = make(shape(Role::kConsumer));
  Rank& from = producer->rank();
  ASSERT_OK(from.start_write("tx", "request", consumer->address(), ""));
  const uint32_t chunk = must(from.add_chunk("tx", {{0, {1}}, {0, {1}}}, true));
  ASSERT_OK(from.write_layer("tx", chunk, 0, nullptr));
  from.seal("tx");
  ASSERT_OK(consumer->rank().receive("tx", producer->address(),
                                     {"request", "", {{0, {5, 6}}, {0, {5}}}}));
  EXPECT_EQ(next(from).event.outcome.reason(), Reason::kOutOfBounds);
  EXPECT_EQ(next(consumer->rank()).event.outcome.reason(), Reason::kOutOfBounds);
}

TEST_F(RankTest, AnAbortedWriteIsToldToAConsumerThatComesLater) {
  const auto producer = make(shape(Role::kProducer));
  const auto consumer = make(shape(Role::kConsumer));
  Rank& from = producer->rank();
  ASSERT_OK(from.start_write("tx", "request", consumer->address(), ""));
  EXPECT_TRUE(from.abort_write("tx", "the request was aborted", {}));
  ASSERT_OK(
      consumer->rank().receive("tx", producer->address(), {"request", "", {{0, {5}}, {0, {5}}}}));
  const RankEvent received = next(consumer->rank());
  EXPECT_EQ(received.event.outcome.reason(), Reason::kCancelled);
  EXPECT_TRUE(consumer->holds(0, 5, 0));
}

TEST_F(RankTest, AnIdCanBeUsedAgainWhenItsTransferHasEnded) {
  // The message that ends a transfer orders what is written next behind what was sent.
  if (kThreadSanitized) GTEST_SKIP() << "the thread sanitizer does not see into libzmq";
  const auto producer = make(shape(Role::kProducer));
  const auto consumer = make(shape(Role::kConsumer));
  ASSERT_OK(link(consumer->rank(), producer->address()));
  ASSERT_OK(link(producer->rank(), consumer->address()));
  for (int round = 1; round <= 10; ++round) {
    producer->fill(0, 1, round);
    ASSERT_OK(producer->rank().offer("7", "", 0));
    const std::vector<GroupBlocks> blocks{{{2}, {1}}, {{}, {}}};
    ASSERT_OK(consumer->rank().read("7", producer->address(), blocks, kLong));
    ASSERT_OK(next(consumer->rank()).event.outcome);
    EXPECT_TRUE(consumer->holds(0, 2, round));
    ASSERT_OK(next(producer->rank()).event.outcome);
    ASSERT_OK(producer->rank().start_write("7", "request", consumer->address(), ""));
    producer->fill(0, 1, 100 + round);
    const uint32_t chunk = must(producer->rank().add_chunk("7", {{0, {1}}, {0, {}}}, true));
    ASSERT_OK(producer->rank().write_layer("7", chunk, 0, nullptr));
    producer->rank().seal("7");
    ASSERT_OK(
        consumer->rank().receive("7", producer->address(), {"request", "", {{0, {3}}, {0, {}}}}));
    ASSERT_OK(next(consumer->rank()).event.outcome);
    EXPECT_TRUE(consumer->holds(0, 3, 100 + round));
    ASSERT_OK(next(producer->rank()).event.outcome);
  }
}

TEST_F(RankTest, AnEndThatDoesNotKnowTheTokenIsNotBelieved) {
  const auto producer = make(shape(Role::kProducer));
  const auto consumer = make(shape(Role::kConsumer));
  Rank& to = consumer->rank();
  ASSERT_OK(link(to, producer->address()));
  ASSERT_OK(to.receive("tx", producer->address(), {"request", "secret", {{0, {5}}, {0, {5}}}}));
  // To the consumer's notify port, as if it were a producer.
  moriio::Wrapper forger({});
  const Endpoint port{"127.0.0.1", static_cast<uint16_t>(consumer->address().notify_port)};
  ASSERT_OK(forger.notify_and_wait(port, moriio::WriteDone{"tx", {}}, kLong));
  // A message of the same connection that is acted upon shows that the one before was looked at.
  moriio::WriteDone knows{"tx", {}};
  knows.extras.token = "secret";
  knows.extras.status = "ok";
  ASSERT_OK(forger.notify_and_wait(port, knows, kLong));
  EXPECT_EQ(next(to).event.kind, EventKind::kReceived);
  EXPECT_NE(to.metrics_text().find("{port=\"notify\",reason=\"token\"} 1\n"), std::string::npos);
}

TEST_F(RankTest, ACacheThatDoesNotFitIsRefusedInOneLine) {
  Shape other = shape(Role::kProducer);
  other.block_size = "16";
  const auto producer = make(other);
  const auto consumer = make(shape(Role::kConsumer));
  const Status refused = link(consumer->rank(), producer->address());
  EXPECT_EQ(refused.code(), Code::kIncompatible);
  EXPECT_EQ(refused.message(), "block_size: ours 4, theirs 16");
}

TEST_F(RankTest, AnExpiredOfferEndsOnceAndALateReleaseChangesNothing) {
  const auto producer = make(shape(Role::kProducer));
  ASSERT_OK(producer->rank().offer("tx", "", 0));
  producer->rank().end_offer("tx", Status(Reason::kExpired, "nobody came"));
  EXPECT_EQ(next(producer->rank()).event.outcome.reason(), Reason::kExpired);
  const auto consumer = make(shape(Role::kConsumer));
  ASSERT_OK(consumer->rank().release("tx", producer->address(), ""));
  ASSERT_OK(link(consumer->rank(), producer->address()));
  EXPECT_TRUE(producer->rank().take_events().empty());
}

TEST_F(RankTest, ARankTakesItsHeadsFromEveryRankThatHasSome) {
  Shape half = shape(Role::kProducer);
  half.tp_size = 2;
  // The second rank listens one port above the first.
  std::unique_ptr<CacheRank> first;
  std::unique_ptr<CacheRank> second;
  for (int tries = 0; second == nullptr && tries < 20; ++tries) {
    half.handshake_port = free_port();
    half.notify_port = free_port();
    try {
      half.tp_rank = 0;
      first = make(half);
      half.tp_rank = 1;
      second = make(half);
    } catch (const std::runtime_error&) {
      second = nullptr;  // A port was taken meanwhile.
    }
  }
  ASSERT_NE(second, nullptr);
  first->fill(0, 3, 1);
  second->fill(0, 3, 2);
  const auto consumer = make(shape(Role::kConsumer));
  ASSERT_OK(first->rank().offer("tx", "", 0));
  ASSERT_OK(second->rank().offer("tx", "", 0));
  ASSERT_OK(link(consumer->rank(), first->address()));
  const std::vector<GroupBlocks> blocks{{{6}, {3}}, {{}, {}}};
  ASSERT_OK(consumer->rank().read("tx", first->address(), blocks, kLong));
  ASSERT_OK(next(consumer->rank()).event.outcome);
  const uint64_t half_bytes = consumer->block_bytes() / 2;
  EXPECT_EQ(consumer->block(0, 6)[0], std::byte{1});
  EXPECT_EQ(consumer->block(0, 6)[half_bytes - 1], std::byte{1});
  EXPECT_EQ(consumer->block(0, 6)[half_bytes], std::byte{2});
  EXPECT_EQ(consumer->block(0, 6)[2 * half_bytes - 1], std::byte{2});
  EXPECT_OK(next(first->rank()).event.outcome);
  EXPECT_OK(next(second->rank()).event.outcome);
}

}  // namespace
}  // namespace stagelink::test
