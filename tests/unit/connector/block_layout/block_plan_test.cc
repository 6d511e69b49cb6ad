#include "connector/block_layout/block_plan.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "connector/block_layout/cache_geometry.h"
#include "connector/block_layout/head_map.h"
#include "connector/block_layout/run_template.h"
#include "unit/connector/block_layout/cache_model.h"

namespace stagelink::block_layout {
namespace {

using Ids = std::vector<int64_t>;

std::vector<uint64_t> as_vector(std::span<const uint64_t> values) {
  return {values.begin(), values.end()};
}

bool names(const Status& status, std::string_view text) {
  return status.message().find(text) != std::string_view::npos;
}

// One run of 100 bytes for each block of a cache of 10 blocks on either side, 128 bytes apart.
RunTemplate simple() { return {10, 10, 128, 128, {{0, 0, 100}}}; }
RunTemplate dense() { return {10, 10, 100, 100, {{0, 0, 100}}}; }

BlockGeometry geometry(const std::vector<uint64_t>& shape, const LayerSpec& spec) {
  CacheTensor tensor{.shape = shape, .strides = std::vector<uint64_t>(shape.size(), 1)};
  tensor.element_bytes = 2;
  for (size_t i = shape.size() - 1; i > 0; --i)
    tensor.strides[i - 1] = tensor.strides[i] * shape[i];
  auto found = find_geometry(tensor, spec);
  EXPECT_TRUE(found.ok()) << found.status().to_string();
  return *found;
}

const LayerSpec kSpec{.block_size = 4, .num_kv_heads = 2, .head_size = 3};

TEST(BlockPlanTest, KeysAndValuesApartAreTwoRunsForEachBlock) {
  const auto ours = geometry({2, 8, 4, 2, 3}, kSpec);
  const auto layout = *make_template(ours, *with_num_blocks(ours, 16));
  BlockPlan plan;
  const Ids local = {1, 3};
  const Ids remote = {4, 5};
  ASSERT_TRUE(plan.fill(layout, {local, remote}).ok());
  EXPECT_EQ(as_vector(plan.local()), (std::vector<uint64_t>{48, 144, 432, 528}));
  EXPECT_EQ(as_vector(plan.remote()), (std::vector<uint64_t>{192, 240, 960, 1008}));
  EXPECT_EQ(as_vector(plan.sizes()), (std::vector<uint64_t>(4, 48)));
  EXPECT_EQ(plan.bytes(), 192U);
}

TEST(BlockPlanTest, NeighboursOnBothSidesBecomeOneRun) {
  const auto ours = geometry({8, 2, 4, 2, 3}, kSpec);
  const auto layout = *make_template(ours, *with_num_blocks(ours, 16));
  BlockPlan plan;
  const Ids local = {1, 2};
  const Ids remote = {4, 5};
  ASSERT_TRUE(plan.fill(layout, {local, remote}).ok());
  EXPECT_EQ(as_vector(plan.local()), (std::vector<uint64_t>{96}));
  EXPECT_EQ(as_vector(plan.remote()), (std::vector<uint64_t>{384}));
  EXPECT_EQ(as_vector(plan.sizes()), (std::vector<uint64_t>{192}));
}

TEST(BlockPlanTest, NullBlocksAreNeverMoved) {
  BlockPlan plan;
  const Ids local = {1, 0, 3, 4};
  const Ids remote = {5, 6, 0, 8, 9};
  ASSERT_TRUE(plan.fill(simple(), {local, remote}).ok());
  EXPECT_EQ(as_vector(plan.local()), (std::vector<uint64_t>{128, 512}));
  EXPECT_EQ(as_vector(plan.remote()), (std::vector<uint64_t>{640, 1024}));
  EXPECT_EQ(plan.skipped(), 2U);
  EXPECT_EQ(plan.bytes(), 200U);
}

TEST(BlockPlanTest, NullBlocksMoveIfTheCallerHasNone) {
  BlockPlan plan;
  const Ids ids = {0};
  ASSERT_TRUE(plan.fill(simple(), {ids, ids}, {.skip_null_block = false}).ok());
  EXPECT_EQ(plan.size(), 1U);
}

TEST(BlockPlanTest, RangesAreInTheOrderOfTheLocalBlocks) {
  BlockPlan plan;
  const Ids local = {7, 2, 9, 1};
  const Ids remote = {1, 2, 3, 4};
  ASSERT_TRUE(plan.fill(simple(), {local, remote}).ok());
  EXPECT_EQ(as_vector(plan.local()), (std::vector<uint64_t>{128, 256, 896, 1152}));
  EXPECT_EQ(as_vector(plan.remote()), (std::vector<uint64_t>{512, 256, 128, 384}));
}

TEST(BlockPlanTest, EqualLocalBlocksKeepTheOrderOfTheList) {
  BlockPlan plan;
  const Ids local = {5, 5, 2, 5};
  const Ids remote = {9, 3, 1, 6};
  ASSERT_TRUE(plan.fill(simple(), {local, remote}).ok());
  EXPECT_EQ(as_vector(plan.remote()), (std::vector<uint64_t>{128, 1152, 384, 768}));
  // Run by run where a block has several.
  const RunTemplate two{10, 10, 128, 128, {{0, 0, 10}, {20, 20, 10}}};
  const Ids same = {1, 1};
  const Ids others = {3, 2};
  ASSERT_TRUE(plan.fill(two, {same, others}).ok());
  EXPECT_EQ(as_vector(plan.local()), (std::vector<uint64_t>{128, 128, 148, 148}));
  EXPECT_EQ(as_vector(plan.remote()), (std::vector<uint64_t>{384, 256, 404, 276}));
}

TEST(BlockPlanTest, LongListsAreSortedByTheWholeId) {
  const uint64_t blocks = uint64_t{1} << 31;
  const RunTemplate layout{blocks, blocks, 8, 8, {{0, 0, 4}}};
  Ids local;
  std::mt19937_64 random(7);
  for (int i = 0; i < 5000; ++i) local.push_back(static_cast<int64_t>(1 + random() % (blocks - 1)));
  BlockPlan plan;
  ASSERT_TRUE(plan.fill(layout, {local, local}).ok());
  std::sort(local.begin(), local.end());
  ASSERT_EQ(plan.size(), local.size());
  for (size_t i = 0; i < local.size(); ++i) {
    ASSERT_EQ(plan.local()[i], static_cast<uint64_t>(local[i]) * 8);
    ASSERT_EQ(plan.remote()[i], plan.local()[i]);
  }
}

TEST(BlockPlanTest, RunsAreCutAtTheLongestMessage) {
  BlockPlan plan;
  const Ids ids = {1, 2, 3};
  ASSERT_TRUE(plan.fill(dense(), {ids, ids}, {.max_run_bytes = 300}).ok());
  EXPECT_EQ(as_vector(plan.sizes()), (std::vector<uint64_t>{300}));
  ASSERT_TRUE(plan.fill(dense(), {ids, ids}, {.max_run_bytes = 299}).ok());
  EXPECT_EQ(as_vector(plan.sizes()), (std::vector<uint64_t>{299, 1}));
  EXPECT_EQ(as_vector(plan.local()), (std::vector<uint64_t>{100, 399}));
  ASSERT_TRUE(plan.fill(dense(), {ids, ids}, {.max_run_bytes = 1}).ok());
  EXPECT_EQ(plan.size(), 300U);
  EXPECT_EQ(plan.local().back(), 399U);
  EXPECT_FALSE(plan.fill(dense(), {ids, ids}, {.max_run_bytes = 0}).ok());
}

TEST(BlockPlanTest, BasesAreAdded) {
  BlockPlan plan;
  const Ids ids = {2};
  ASSERT_TRUE(plan.fill(simple(), {ids, ids}, {.local_base = 1000, .remote_base = 7}).ok());
  EXPECT_EQ(plan.local()[0], 1256U);
  EXPECT_EQ(plan.remote()[0], 263U);
  EXPECT_EQ(plan.fill(simple(), {ids, ids}, {.local_base = uint64_t{1} << 63}).reason(),
            Reason::kInvalidArgument);
}

TEST(BlockPlanTest, AnIdOutOfRangeIsNamed) {
  BlockPlan plan;
  const Ids good = {9};
  for (const int64_t id : {int64_t{10}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    const Ids bad = {1, id};
    const Ids two = {1, 2};
    const auto ours = plan.fill(simple(), {bad, two});
    EXPECT_EQ(ours.reason(), Reason::kOutOfBounds);
    EXPECT_TRUE(names(ours, "local block id " + std::to_string(id))) << ours.to_string();
    const auto theirs = plan.fill(simple(), {good, bad});
    EXPECT_TRUE(names(theirs, "remote block id " + std::to_string(id))) << theirs.to_string();
    EXPECT_EQ(plan.size(), 0U);
  }
  EXPECT_TRUE(plan.fill(simple(), {good, good}).ok());
}

TEST(BlockPlanTest, ALongerRemoteListIsCutAndALongerLocalListRefused) {
  BlockPlan plan;
  const Ids one = {1};
  const Ids two = {4, 5};
  ASSERT_TRUE(plan.fill(simple(), {one, two}).ok());
  EXPECT_EQ(as_vector(plan.remote()), (std::vector<uint64_t>{512}));
  EXPECT_TRUE(names(plan.fill(simple(), {two, one}), "2 local blocks for 1 remote"));
  ASSERT_TRUE(plan.fill(simple(), {}).ok());
  EXPECT_EQ(plan.size(), 0U);
}

TEST(BlockPlanTest, ARefilledPlanDoesNotMoveInMemory) {
  BlockPlan plan;
  const Ids ids = {9, 8, 7, 6, 5, 4, 3, 2, 1};
  ASSERT_TRUE(plan.fill(simple(), {ids, ids}, {.max_run_bytes = 10}).ok());
  const auto* const before = plan.local().data();
  const auto* const sizes = plan.sizes().data();
  ASSERT_TRUE(plan.fill(simple(), {ids, ids}, {.max_run_bytes = 10}).ok());
  EXPECT_EQ(plan.local().data(), before);
  EXPECT_EQ(plan.sizes().data(), sizes);
}

TEST(PlanCacheTest, LayersThatLookAlikeShareAPlan) {
  PlanCache cache;
  const Ids ids = {1, 2};
  const auto* const first = *cache.plan(simple(), {ids, ids});
  EXPECT_EQ(*cache.plan(simple(), {ids, ids}), first);
  EXPECT_NE(*cache.plan(dense(), {ids, ids}), first);
  EXPECT_EQ(cache.size(), 2U);
  std::vector<uint64_t> local = {1};
  std::vector<uint64_t> remote = {1};
  std::vector<uint64_t> sizes = {1};
  first->append_to(local, remote, sizes, 1000, 2000);
  EXPECT_EQ(local, (std::vector<uint64_t>{1, 1128, 1256}));
  EXPECT_EQ(remote, (std::vector<uint64_t>{1, 2128, 2256}));
  EXPECT_EQ(sizes, (std::vector<uint64_t>{1, 100, 100}));
  cache.reset();
  const Ids other = {3};
  EXPECT_EQ((*cache.plan(simple(), {other, other}))->local()[0], 384U);
}

TEST(PlanCacheTest, HasABoundAndAFailureLeavesNothing) {
  PlanCache cache;
  const Ids ids = {1};
  const Ids bad = {99};
  EXPECT_FALSE(cache.plan(simple(), {bad, ids}).ok());
  EXPECT_EQ(cache.size(), 0U);
  RunTemplate layout = simple();
  for (size_t i = 0; i < PlanCache::kMaxPlans; ++i) {
    layout.runs[0].bytes = i + 1;
    EXPECT_TRUE(cache.plan(layout, {ids, ids}).ok());
  }
  layout.runs[0].bytes = 101;
  EXPECT_EQ(cache.plan(layout, {ids, ids}).status().reason(), Reason::kLimit);
}

TEST(StatePlanTest, AStateIsPartsOfASlotOnEitherSide) {
  const StateGeometry conv{8, 1000, {{0, 100}, {100, 50}, {200, 60}}};
  StateGeometry theirs = conv;
  theirs.num_slots = 16;
  theirs.slot_stride = 2000;
  const auto layout = make_template(conv, theirs);
  ASSERT_TRUE(layout.ok()) << layout.status().to_string();
  BlockPlan plan;
  const Ids local = {3, 1};
  const Ids remote = {15, 2};
  ASSERT_TRUE(plan.fill(*layout, {local, remote}).ok());
  EXPECT_EQ(as_vector(plan.local()), (std::vector<uint64_t>{1000, 1200, 3000, 3200}));
  EXPECT_EQ(as_vector(plan.remote()), (std::vector<uint64_t>{4000, 4200, 30000, 30200}));
  EXPECT_EQ(as_vector(plan.sizes()), (std::vector<uint64_t>{150, 60, 150, 60}));
}

TEST(StatePlanTest, OtherPartsAreRefusedByName) {
  const StateGeometry ours{8, 1000, {{0, 100}}};
  EXPECT_TRUE(names(make_template(ours, {8, 1000, {{0, 90}}}).status(),
                    "state bytes: ours 100, theirs 90"));
  EXPECT_TRUE(names(make_template(ours, {8, 1000, {{0, 50}, {50, 50}}}).status(), "state parts"));
  const StateGeometry overlap{8, 1000, {{0, 100}, {50, 100}}};
  EXPECT_FALSE(make_template(overlap, overlap).ok());
  const StateGeometry large{8, 99, {{0, 100}}};
  EXPECT_FALSE(make_template(large, large).ok());
}

TEST(StatePlanTest, StatesOfAPageFollowOneAnother) {
  const std::vector<uint64_t> sizes = {300, 500};
  const auto states = states_of_page(4, 1024, 800, sizes);
  ASSERT_TRUE(states.ok()) << states.status().to_string();
  EXPECT_EQ((*states)[1], (StateGeometry{4, 1024, {{300, 500}}}));
  EXPECT_FALSE(states_of_page(4, 1024, 799, sizes).ok());
  EXPECT_FALSE(states_of_page(4, 799, 800, sizes).ok());
}

// Bytes moved by plans, against a model that knows nothing of runs.
class MovedBytes : public testing::Test {
 protected:
  std::vector<uint8_t> filled(const CacheModel& model, uint32_t first_head) {
    std::vector<uint8_t> out(model.bytes());
    each_row(model, [&](uint64_t block, uint32_t plane, uint32_t token, uint32_t head) {
      const uint64_t at = model.address(block, plane, token, head);
      for (uint32_t i = 0; i < model.row_bytes; ++i) {
        out[at + i] = golden(block, plane, token, first_head + head, i);
      }
    });
    return out;
  }

  template <typename Row>
  void each_row(const CacheModel& model, Row row) {
    for (uint64_t block = 0; block < model.blocks; ++block) {
      for (uint32_t plane = 0; plane < model.planes(); ++plane) {
        for (uint32_t token = 0; token < model.tokens(); ++token) {
          for (uint32_t head = 0; head < model.heads; ++head) row(block, plane, token, head);
        }
      }
    }
  }

  // As a read: local is the destination.
  static void move(const BlockPlan& plan, std::vector<uint8_t>& local,
                   const std::vector<uint8_t>& remote) {
    for (size_t i = 0; i < plan.size(); ++i) {
      ASSERT_LE(plan.local()[i] + plan.sizes()[i], local.size());
      ASSERT_LE(plan.remote()[i] + plan.sizes()[i], remote.size());
      for (uint64_t byte = 0; byte < plan.sizes()[i]; ++byte) {
        auto& to = local[plan.local()[i] + byte];
        ASSERT_EQ(to, 0) << "a byte is written twice";
        to = remote[plan.remote()[i] + byte];
      }
    }
  }

  Ids some_blocks(uint64_t blocks, size_t count) {
    Ids ids(blocks);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
    std::shuffle(ids.begin() + 1, ids.end(), random_);  // Block 0 stays at the front.
    if (random_() % 2 == 0) std::sort(ids.begin() + 1, ids.end());
    ids.resize(count);
    return ids;
  }

  CacheModel some_model(uint32_t tokens, uint32_t heads, bool planes) {
    CacheModel model;
    model.layout = !planes              ? Layout::kRows
                   : random_() % 2 == 0 ? Layout::kKvFirst
                                        : Layout::kInterleaved;
    model.heads_before_tokens = random_() % 2 == 0;
    model.kernel_per_block = random_() % 2 == 0 ? 1 : 2;
    model.kernel_tokens = tokens / model.kernel_per_block;
    model.heads = heads;
    model.blocks = 5 + random_() % 12;
    model.padding = random_() % 3 == 0 ? random_() % 40 : 0;
    return model;
  }

  std::mt19937_64 random_{20240229};
};

TEST_F(MovedBytes, AreThoseOfTheModelForEveryPairOfLayouts) {
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    const uint32_t tokens = random_() % 2 == 0 ? 4 : 8;
    const auto heads = static_cast<uint32_t>(1 + random_() % 3);
    const bool planes = random_() % 2 == 0;
    const CacheModel ours = some_model(tokens, heads, planes);
    const CacheModel theirs = some_model(tokens, heads, planes);
    const auto local_geometry = find_geometry(ours.tensor(), ours.spec());
    ASSERT_TRUE(local_geometry.ok()) << local_geometry.status().to_string();
    const auto remote_geometry = find_geometry(theirs.tensor(), theirs.spec());
    ASSERT_TRUE(remote_geometry.ok()) << remote_geometry.status().to_string();
    const auto layout = make_template(*local_geometry, *remote_geometry);
    ASSERT_TRUE(layout.ok()) << layout.status().to_string();

    const size_t count = 1 + random_() % (std::min(ours.blocks, theirs.blocks) - 1);
    const Ids local_ids = some_blocks(ours.blocks, count);
    const Ids remote_ids = some_blocks(theirs.blocks, count);
    BlockPlan plan;
    ASSERT_TRUE(
        plan.fill(*layout, {local_ids, remote_ids}, {.max_run_bytes = 1 + random_() % 200}).ok());
    std::vector<uint8_t> memory(ours.bytes());
    move(plan, memory, filled(theirs, 0));
    std::vector<int64_t> source(ours.blocks, -1);
    for (size_t i = 0; i < count; ++i) {
      if (local_ids[i] != 0 && remote_ids[i] != 0) source[local_ids[i]] = remote_ids[i];
    }
    uint64_t written = 0;
    each_row(ours, [&](uint64_t block, uint32_t plane, uint32_t token, uint32_t head) {
      const uint64_t at = ours.address(block, plane, token, head);
      for (uint32_t i = 0; i < ours.row_bytes; ++i) {
        const auto from = source[block];
        ASSERT_EQ(memory[at + i],
                  from < 0 ? 0 : golden(static_cast<uint64_t>(from), plane, token, head, i));
        written += from < 0 ? 0 : 1;
      }
    });
    EXPECT_EQ(written, plan.bytes());
    EXPECT_EQ(static_cast<uint64_t>(std::count_if(memory.begin(), memory.end(),
                                                  [](uint8_t byte) { return byte != 0; })),
              written);
  }
}

TEST_F(MovedBytes, AreTheRightHeadsForEveryPairOfTpSizes) {
  for (const uint32_t total : {1U, 2U, 4U, 8U}) {
    for (const uint32_t sources : {1U, 2U, 4U, 8U}) {
      for (const uint32_t destinations : {1U, 2U, 4U, 8U}) {
        const TpPair pair{total, sources, destinations};
        const bool planes = (sources + destinations) % 3 != 0;
        CacheModel theirs = some_model(4, std::max(1U, total / sources), planes);
        CacheModel ours = some_model(4, std::max(1U, total / destinations), planes);
        const Ids local_ids = some_blocks(ours.blocks, 4);
        const Ids remote_ids = some_blocks(theirs.blocks, 4);
        for (uint32_t rank = 0; rank < destinations; ++rank) {
          SCOPED_TRACE(testing::Message() << total << " heads, " << sources << " to "
                                          << destinations << ", rank " << rank);
          std::vector<uint8_t> memory(ours.bytes());
          const auto routes = *routes_to(pair, rank);
          for (const HeadRoute& route : routes) {
            const auto layout =
                make_template(*find_geometry(ours.tensor(), ours.spec()),
                              *find_geometry(theirs.tensor(), theirs.spec()), route.slice);
            ASSERT_TRUE(layout.ok()) << layout.status().to_string();
            BlockPlan plan;
            ASSERT_TRUE(plan.fill(*layout, {local_ids, remote_ids}).ok());
            const auto range = *heads_of_rank(total, sources, route.remote_rank);
            move(plan, memory, filled(theirs, range.first));
          }
          const auto mine = *heads_of_rank(total, destinations, rank);
          for (size_t i = 1; i < local_ids.size(); ++i) {
            for (uint32_t plane = 0; plane < ours.planes(); ++plane) {
              for (uint32_t token = 0; token < ours.tokens(); ++token) {
                for (uint32_t head = 0; head < ours.heads; ++head) {
                  const uint64_t at =
                      ours.address(static_cast<uint64_t>(local_ids[i]), plane, token, head);
                  ASSERT_EQ(memory[at], golden(static_cast<uint64_t>(remote_ids[i]), plane, token,
                                               mine.first + head, 0));
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace stagelink::block_layout
