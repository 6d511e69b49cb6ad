// KV caches that are read from the pools of other processes straight to where their tensors go.

#include "connector/kv/straight_get.h"

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "connector/kv/in_place/registered_cache.h"
#include "connector/kv/rank_map.h"
#include "integration/connector/pull/old_sender.h"
#include "integration/connector/pull/pull_test.h"

namespace stagelink::test {
namespace {

using kv::PayloadTensor;
using kv::StraightGet;
using pull::PullMetadata;

constexpr uint32_t kStraightLayers = 2;
constexpr uint64_t kTokens = 16;
constexpr uint64_t kHeads = 4;
constexpr uint64_t kDim = 8;
constexpr std::string_view kRequest = "r1";

// One element of a cache, of the whole model's heads; `fill` tells payloads apart.
uint16_t element(uint16_t fill, const PayloadTensor& tensor, uint64_t token, uint64_t head,
                 uint64_t dim) {
  const uint64_t kind = 2 * tensor.layer + (tensor.is_value ? 1 : 0);
  return static_cast<uint16_t>(fill + (((kind * kTokens + token) * kHeads + head) * kDim + dim));
}

// What a sender puts that has the heads from `first` on.
std::vector<std::byte> payload(uint16_t fill, uint64_t first, uint64_t heads, size_t blocks = 1) {
  kv::PayloadHeader header;
  header.request_id = kRequest;
  header.block_ids.assign(blocks, 123456);
  header.metadata = heads < kHeads ? R"({"tp_head_slice":{"applied":true,"target_rank":0}})" : "{}";
  header.num_layers = kStraightLayers;
  for (const bool is_value : {false, true}) {
    for (uint32_t layer = 0; layer < kStraightLayers; ++layer) {
      const uint64_t bytes = kTokens * heads * kDim * 2;
      header.tensors.push_back({is_value,
                                layer,
                                kv::find_kv_dtype("int16"),
                                {kTokens, heads, kDim},
                                header.tensors.size() * bytes,
                                bytes});
    }
  }
  const std::string head = must(kv::encode_header(header));
  std::vector<std::byte> out = bytes_of(head);
  for (const PayloadTensor& tensor : header.tensors) {
    for (uint64_t token = 0; token < kTokens; ++token) {
      for (uint64_t i = 0; i < heads * kDim; ++i) {
        const uint16_t value = element(fill, tensor, token, first + i / kDim, i % kDim);
        const auto bytes = std::as_bytes(std::span(&value, 1));
        out.insert(out.end(), bytes.begin(), bytes.end());
      }
    }
  }
  return out;
}

class StraightGetTest : public PullOwnershipTest {
 protected:
  // Of rank 0, whose cache has so many heads, from the senders of all its parts.
  static Result<StraightGet::Claimed> claim_all(pull::PullConnector& receiver, uint32_t from_tp,
                                                uint32_t to_tp,
                                                std::span<const PullMetadata> senders,
                                                Duration wait = 0s) {
    const auto map = must(kv::RankMap::create({from_tp, to_tp, kHeads}));
    const auto routes = must(map.gets(0));
    std::vector<pull::GetRequest> gets;
    for (const PullMetadata& sender : senders) gets.push_back(from(sender, "kv"));
    return StraightGet::claim(receiver, {gets, routes, kRequest, 0, kHeads / to_tp},
                              {.wait = wait});
  }
  // Every element, where the plan says that it is.
  static Status read_and_check(StraightGet& get, uint16_t fill, uint64_t heads) {
    const PrivateMemory memory(get.plan().bytes());
    SL_TRY(get.read(memory.bytes(), 10s));
    EXPECT_TRUE(memory.canaries_intact());
    EXPECT_EQ(get.plan().tensors().size(), 2 * kStraightLayers);
    for (const PayloadTensor& tensor : get.plan().tensors()) {
      EXPECT_EQ(tensor.shape, (std::vector<uint64_t>{kTokens, heads, kDim}));
      uint64_t at = tensor.offset;
      for (uint64_t i = 0; i < kTokens * heads * kDim; ++i, at += 2) {
        uint16_t value = 0;
        std::memcpy(&value, memory.bytes().data() + at, sizeof value);
        const uint16_t right =
            element(fill, tensor, i / (heads * kDim), i / kDim % heads, i % kDim);
        if (value == right) continue;
        return Status(Reason::kCorrupt,
                      fmt::format("{} has {} at {} instead of {}", tensor.name(), value, i, right));
      }
    }
    return {};
  }
};

TEST_F(StraightGetTest, APayloadOfAllHeadsGoesInOneReadEvenWithALongHeader) {
  PullPeer sender(json(""));
  auto receiver = connector(kReceiverRole);
  // 20,000 block ids make a header that the first read does not bring whole.
  for (const size_t blocks : {size_t{1}, size_t{20'000}}) {
    (void)must(sender.put_bytes("kv", payload(7, 0, kHeads, blocks)));
    auto claimed = must(claim_all(*receiver, 1, 1, std::span(&sender.address(), 1)));
    ASSERT_NE(claimed.get, nullptr);
    EXPECT_EQ(claimed.get->headers()[0].block_ids.size(), blocks);
    EXPECT_TRUE(claimed.get->plan().dense(0));
    // What is put meanwhile is another payload.
    (void)must(sender.put_bytes("kv", payload(1000, 0, kHeads)));
    EXPECT_OK(read_and_check(*claimed.get, 7, kHeads));
    EXPECT_REASON(Reason::kInvalidArgument, claimed.get->read({}, 1s));
    EXPECT_TRUE(eventually([&] { return sender.health().claims == 0; }));
    EXPECT_EQ(sender.health().offers, 1u);
  }
}

TEST_F(StraightGetTest, HeadsOfTwoSendersAndAShareOfOneComeTogether) {
  PullPeer first(json(R"("protocol": "tcp")"));
  PullPeer second(json(R"("protocol": "tcp")"));
  auto receiver = connector(R"("role": "receiver", "protocol": "tcp")");
  (void)must(first.put_bytes("kv", payload(7, 0, kHeads / 2)));
  (void)must(second.put_bytes("kv", payload(7, kHeads / 2, kHeads / 2)));
  const std::vector<PullMetadata> both = {first.address(), second.address()};
  auto claimed = must(claim_all(*receiver, 2, 1, both));
  ASSERT_NE(claimed.get, nullptr);
  EXPECT_FALSE(claimed.get->plan().dense(0));
  EXPECT_OK(read_and_check(*claimed.get, 7, kHeads));
  // A sender that has put its whole shard, of which this rank takes a half.
  (void)must(first.put_bytes("kv", payload(9, 0, kHeads)));
  claimed = must(claim_all(*receiver, 1, 2, std::span(both).first(1)));
  ASSERT_NE(claimed.get, nullptr);
  EXPECT_OK(read_and_check(*claimed.get, 9, kHeads / 2));
  EXPECT_TRUE(
      eventually([&] { return first.health().offers == 0 && second.health().offers == 0; }));
}

TEST_F(StraightGetTest, UnlessAllAreThereNoneIsTakenFromWhoComesNext) {
  PullPeer there(json(""));
  PullPeer missing(json(""));
  auto receiver = connector(kReceiverRole);
  (void)must(there.put_bytes("kv", payload(7, 0, kHeads / 2)));
  const std::vector<PullMetadata> both = {there.address(), missing.address()};
  auto claimed = must(claim_all(*receiver, 2, 1, both, 30ms));
  EXPECT_EQ(claimed.get, nullptr);
  ASSERT_EQ(claimed.outcomes.size(), 2u);
  EXPECT_OK(claimed.outcomes[0]);
  EXPECT_REASON(Reason::kTimedOut, claimed.outcomes[1]);
  EXPECT_TRUE(eventually([&] { return there.health().claims == 0; }));
  EXPECT_EQ(there.health().offers, 1u);
  (void)must(missing.put_bytes("kv", payload(7, kHeads / 2, kHeads / 2)));
  {
    // Dropped before it was read, by a receiver that has changed its mind.
    const auto dropped = must(claim_all(*receiver, 2, 1, both));
    ASSERT_NE(dropped.get, nullptr);
  }
  claimed = must(claim_all(*receiver, 2, 1, both));
  ASSERT_NE(claimed.get, nullptr);
  EXPECT_OK(read_and_check(*claimed.get, 7, kHeads));
}

TEST_F(StraightGetTest, WhatIsNoPayloadOfThisRequestIsRefusedAndGivenUp) {
  PullPeer sender(json(""));
  auto receiver = connector(kReceiverRole);
  const auto sole = std::span(&sender.address(), 1);
  (void)must(sender.put("kv", 3, 100'000));
  EXPECT_EQ(claim_all(*receiver, 1, 1, sole).status().code(), Code::kCorrupt);
  EXPECT_TRUE(eventually([&] { return sender.health().claims == 0; }));
  EXPECT_EQ(sender.health().offers, 1u);
  (void)must(sender.put_bytes("kv", payload(7, 0, kHeads / 2)));
  EXPECT_REASON(Reason::kIncompatible, claim_all(*receiver, 1, 1, sole).status());
}

// Whose payloads come whole into the pool, and go from there to where they belong.
TEST_F(StraightGetTest, ASenderOf030GivesTheSame) {
  auto holder = connector("");
  const std::vector<std::byte> bytes = payload(7, 0, kHeads);
  const auto region = must(holder->allocate_memory(bytes.size()));
  std::memcpy(region->bytes().data(), bytes.data(), bytes.size());
  const auto address = reinterpret_cast<uint64_t>(region->bytes().data());
  OldSender old({"kv",
                 holder->connection_info().rpc_port,
                 bytes.size(),
                 true,
                 {address, address + 1000},
                 {1000, bytes.size() - 1000}});
  auto receiver = connector(R"("role": "receiver", "compat_030": true)");
  auto claimed = must(claim_all(*receiver, 1, 1, std::span(&old.address(), 1)));
  ASSERT_NE(claimed.get, nullptr);
  EXPECT_TRUE(claimed.get->plan().dense(0));
  EXPECT_OK(read_and_check(*claimed.get, 7, kHeads));
  EXPECT_TRUE(eventually([&] { return old.cleanups() == 1; }));
}

// Layers of four blocks, in the order 3, 1, 2, 0, and the memory that they are.
struct PagedLayers {
  explicit PagedLayers(uint16_t fill) {
    constexpr std::array<uint64_t, 4> kOrder = {3, 1, 2, 0};
    constexpr uint64_t kBlock = kTokens / kOrder.size();
    for (uint32_t layer = 0; layer < kStraightLayers; ++layer) {
      auto& memory = values.emplace_back(2 * kTokens * kHeads * kDim);
      for (uint64_t i = 0; i < memory.size(); ++i) {
        PayloadTensor tensor;
        tensor.is_value = i >= memory.size() / 2;
        tensor.layer = layer;
        const uint64_t row = i / (kHeads * kDim) % kTokens;
        const uint64_t token = kOrder[row / kBlock] * kBlock + row % kBlock;
        memory[i] = element(fill, tensor, token, i / kDim % kHeads, i % kDim);
      }
      constexpr int64_t kRow = kHeads * kDim * 2;
      planes.push_back(must(kv::planes_of({reinterpret_cast<const std::byte*>(memory.data()),
                                           kv::find_kv_dtype("int16"),
                                           {2, 4, kBlock, kHeads, kDim},
                                           {kTokens * kRow, kBlock * kRow, kRow, kDim * 2, 2}},
                                          {.block_size = kBlock})));
    }
    constexpr std::array<int64_t, 4> kIds = {3, 1, 2, 0};
    plan = must(kv::PayloadPlan::create(
        planes, {.request_id = kRequest, .block_ids = kIds, .seq_len = kTokens, .heads = {}}));
  }

  std::vector<std::vector<uint16_t>> values;
  std::vector<kv::LayerPlanes> planes;
  std::optional<kv::PayloadPlan> plan;
};

TEST_F(StraightGetTest, ARegisteredCacheIsReadWhereItLiesAndIsFreeWhenItHasBeenRead) {
  PagedLayers layers(7);
  const PagedLayers others(9);
  auto sender = connector("");
  auto receiver = connector(kReceiverRole);
  auto cache = must(kv::RegisteredCache::create(*sender, layers.planes));
  EXPECT_REASON(Reason::kOutOfBounds, cache->put("kv", *others.plan, 1).status());
  const std::array<PullMetadata, 1> put = {must(cache->put("kv", *layers.plan, 2))};
  EXPECT_EQ(cache->held(), 1u);
  EXPECT_LT(sender->health().pool_used, layers.plan->size());  // The header is in the pool.
  auto claimed = must(claim_all(*receiver, 1, 1, put));
  ASSERT_NE(claimed.get, nullptr);
  EXPECT_REASON(Reason::kReaderInside, cache->close(0s));  // Takes it back, and it is claimed.
  EXPECT_OK(read_and_check(*claimed.get, 7, kHeads));
  EXPECT_OK(cache->close(20s));
  EXPECT_EQ(cache->take_free(), (std::vector<uint64_t>{2}));
  EXPECT_EQ(cache->take_free(), std::vector<uint64_t>());
  EXPECT_EQ(sender->health().pool_used, 0u);
  auto shm = connector(R"("protocol": "shm")");
  EXPECT_REASON(Reason::kUnsupported, kv::RegisteredCache::create(*shm, layers.planes).status());
  EXPECT_REASON(Reason::kTooManyRegions, kv::RegisteredCache::create(*sender, {}).status());
}

}  // namespace
}  // namespace stagelink::test
