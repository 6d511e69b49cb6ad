#include "memory/region_registry.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "unit/memory/in_child.h"

namespace stagelink::memory {
namespace {

constexpr InstanceId kInstance{1, 2};

std::unique_ptr<RegionRegistry> make_registry(uint32_t capacity = 1024) {
  auto registry = RegionRegistry::create(kInstance, capacity);
  if (!registry.ok()) ADD_FAILURE() << registry.status().to_string();
  return *std::move(registry);
}

void* at(uint64_t address) { return reinterpret_cast<void*>(address); }

std::shared_ptr<RegionRecord> add(RegionRegistry& registry, uint64_t address, size_t bytes) {
  auto record = registry.add(at(address), bytes, Access::kReadWrite);
  if (!record.ok()) ADD_FAILURE() << record.status().to_string();
  return *record;
}

void drop(RegionRegistry& registry, const std::shared_ptr<RegionRecord>& record) {
  registry.retire(*record);
  registry.forget(*record);
}

// The table as a peer maps it.
class PeerView {
 public:
  explicit PeerView(const RegionRegistry& registry, uint32_t capacity) {
    auto pages =
        SharedPages::open(UniqueFd(::dup(registry.table_fd())), wire::table_bytes(capacity), false);
    if (!pages.ok()) ADD_FAILURE() << pages.status().to_string();
    pages_ = *std::move(pages);
  }
  const wire::TableHeader& header() const { return *pages_.at<wire::TableHeader>(); }
  const wire::TableEntry& row(uint32_t index) const {
    return pages_.at<wire::TableEntry>(wire::kTableEntriesOffset)[index];
  }

 private:
  SharedPages pages_;
};

TEST(RegionRegistryTest, RefusesWhatCannotBeARegion) {
  auto registry = make_registry();
  EXPECT_EQ(registry->add(nullptr, 8, Access::kReadOnly).status().reason(),
            Reason::kInvalidArgument);
  EXPECT_EQ(registry->add(at(4096), 0, Access::kReadOnly).status().reason(),
            Reason::kInvalidArgument);
  EXPECT_EQ(registry->add(at(4096), std::numeric_limits<size_t>::max() - 4095, Access::kReadOnly)
                .status()
                .reason(),
            Reason::kOverflow);
  EXPECT_EQ(registry->size(), 0U);
  // The last bytes that there are: just no overflow.
  EXPECT_TRUE(
      registry->add(at(4096), std::numeric_limits<size_t>::max() - 4096, Access::kReadOnly).ok());
}

TEST(RegionRegistryTest, CapacityHasBounds) {
  EXPECT_EQ(RegionRegistry::create(kInstance, 0).status().reason(), Reason::kInvalidArgument);
  EXPECT_EQ(RegionRegistry::create(kInstance, RegionRegistry::kMaxCapacity + 1).status().reason(),
            Reason::kInvalidArgument);
  EXPECT_TRUE(RegionRegistry::create(kInstance, 1).ok());
}

TEST(RegionRegistryTest, FullTableIsTooManyRegionsUntilOneIsForgotten) {
  auto registry = make_registry(2);
  auto first = add(*registry, 4096, 10);
  add(*registry, 8192, 10);
  const auto refused = registry->add(at(4096), 10, Access::kReadOnly);
  EXPECT_EQ(refused.status().reason(), Reason::kTooManyRegions);
  registry->retire(*first);
  EXPECT_EQ(registry->add(at(4096), 10, Access::kReadOnly).status().reason(),
            Reason::kTooManyRegions);
  registry->forget(*first);
  EXPECT_TRUE(registry->add(at(4096), 10, Access::kReadOnly).ok());
}

TEST(RegionRegistryTest, DescriptorSaysWhatWasRegistered) {
  auto registry = make_registry();
  auto record = registry->add(at(0x5000), 123, Access::kReadOnly);
  ASSERT_TRUE(record.ok());
  const RegionDesc& desc = (*record)->desc;
  EXPECT_EQ(desc.instance, kInstance);
  EXPECT_EQ(desc.address, 0x5000U);
  EXPECT_EQ(desc.bytes, 123U);
  EXPECT_EQ(desc.access, Access::kReadOnly);
  EXPECT_FALSE(desc.shareable);
  EXPECT_GT(desc.generation, 0U);
}

TEST(RegionRegistryTest, SegmentKeepsItsNonceAndIsShareable) {
  auto registry = make_registry();
  auto segment = Segment::create(10'000, {}, kInstance);
  ASSERT_TRUE(segment.ok());
  const uint64_t nonce = segment->nonce();
  auto record = registry->add(*std::move(segment), Access::kReadWrite);
  ASSERT_TRUE(record.ok());
  EXPECT_EQ((*record)->desc.nonce, nonce);
  EXPECT_TRUE((*record)->desc.shareable);
  EXPECT_EQ((*record)->bytes.size(), 10'000U);
  EXPECT_EQ(registry->registered_bytes(), 10'000U);
}

TEST(RegionRegistryTest, FindTellsUnknownRowsFromPassedGenerations) {
  auto registry = make_registry();
  auto record = add(*registry, 4096, 10);
  const auto [index, generation] = std::pair(record->desc.index, record->desc.generation);
  EXPECT_EQ(*registry->find(index, generation), record);
  EXPECT_EQ(registry->find(index + 1, generation).status().reason(), Reason::kNotRegistered);
  EXPECT_EQ(registry->find(~uint32_t{0}, generation).status().reason(), Reason::kNotRegistered);
  EXPECT_EQ(registry->find(index, generation + 1).status().reason(), Reason::kSuperseded);
  registry->retire(*record);
  EXPECT_EQ(registry->find(index, generation).status().reason(), Reason::kSuperseded);
  EXPECT_EQ(registry->find(index, generation + 1).status().reason(), Reason::kSuperseded);
}

TEST(RegionRegistryTest, RetireClosesTheGateAndAdvancesTheEpoch) {
  auto registry = make_registry();
  auto record = add(*registry, 4096, 10);
  ASSERT_TRUE(record->gate.try_pin());
  const uint64_t before = registry->header()->epoch.load();
  const uint64_t epoch = registry->retire(*record);
  EXPECT_EQ(epoch, before + 1);
  EXPECT_EQ(registry->header()->epoch.load(), epoch);
  EXPECT_FALSE(record->gate.try_pin());
  EXPECT_EQ(record->gate.pins(), 1U);
}

TEST(RegionRegistryTest, RetireIsIdempotentUntilForget) {
  auto registry = make_registry();
  auto first = add(*registry, 4096, 10);
  auto second = add(*registry, 4096, 10);
  const uint64_t epoch = registry->retire(*first);
  registry->retire(*second);
  EXPECT_EQ(registry->retire(*first), epoch);
  registry->forget(*first);
  EXPECT_EQ(registry->retire(*first), 0U);
  auto third = add(*registry, 4096, 10);  // In the same row.
  ASSERT_EQ(third->desc.index, first->desc.index);
  EXPECT_EQ(registry->retire(*first), 0U);
  registry->forget(*first);
  EXPECT_TRUE(registry->find(third->desc.index, third->desc.generation).ok());
}

TEST(RegionRegistryTest, ForgetOfALiveRegionRetiresIt) {
  auto registry = make_registry();
  auto record = add(*registry, 4096, 10);
  registry->forget(*record);
  EXPECT_TRUE(record->gate.closed());
  EXPECT_EQ(registry->size(), 0U);
  EXPECT_EQ(registry->find(record->desc.index, record->desc.generation).status().reason(),
            Reason::kSuperseded);
}

TEST(RegionRegistryTest, GenerationsOfARowNeverRepeat) {
  auto registry = make_registry(1);
  uint64_t last = 0;
  for (int i = 0; i < 1000; ++i) {
    auto record = add(*registry, 4096, 10);
    ASSERT_EQ(record->desc.index, 0U);
    ASSERT_GT(record->desc.generation, last);
    last = record->desc.generation;
    drop(*registry, record);
  }
}

TEST(RegionRegistryTest, GaugesCountUntilForget) {
  auto registry = make_registry();
  auto first = add(*registry, 4096, 10);
  auto second = add(*registry, 4096, 20);
  EXPECT_EQ(registry->size(), 2U);
  EXPECT_EQ(registry->registered_bytes(), 30U);
  registry->retire(*first);
  EXPECT_EQ(registry->registered_bytes(), 30U);
  EXPECT_EQ(registry->live().size(), 1U);
  registry->forget(*first);
  EXPECT_EQ(registry->size(), 1U);
  EXPECT_EQ(registry->registered_bytes(), 20U);
  drop(*registry, second);
  EXPECT_EQ(registry->registered_bytes(), 0U);
}

TEST(RegionRegistryTest, PeerSeesRowsComeAndGo) {
  auto registry = make_registry(16);
  const PeerView view(*registry, 16);
  EXPECT_EQ(view.header().magic, wire::kTableMagic);
  EXPECT_EQ(view.header().capacity, 16U);
  EXPECT_EQ(view.header().instance_low, kInstance.low);
  EXPECT_EQ(view.header().rows_used.load(), 0U);
  auto record = registry->add(at(0x7000), 77, Access::kReadOnly);
  ASSERT_TRUE(record.ok());
  const RegionDesc desc = (*record)->desc;
  const wire::TableEntry& row = view.row(desc.index);
  EXPECT_EQ(view.header().rows_used.load(), 1U);
  EXPECT_EQ(row.state.load(), desc.generation << 1 | 1);
  EXPECT_EQ(row.address.load(), 0x7000U);
  EXPECT_EQ(row.bytes.load(), 77U);
  EXPECT_EQ(row.nonce.load(), desc.nonce);
  EXPECT_EQ(row.flags.load(), 0U);
  registry->retire(**record);
  EXPECT_EQ(row.state.load(), (desc.generation + 1) << 1);
}

TEST(RegionRegistryTest, PeerCannotWriteTheTable) {
  auto registry = make_registry(16);
  EXPECT_FALSE(
      SharedPages::open(UniqueFd(::dup(registry->table_fd())), wire::table_bytes(16), true).ok());
}

// A reader that checks the state, reads the fields and checks again never sees a mixture.
TEST(RegionRegistryTest, RowReadBetweenTwoEqualStatesIsOfOneRegion) {
  auto registry = make_registry(1);
  const PeerView view(*registry, 1);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> good{0};
  std::thread reader([&] {
    const wire::TableEntry& row = view.row(0);
    while (!stop) {
      const uint64_t state = row.state.load(std::memory_order_acquire);
      if ((state & 1) == 0) continue;
      const uint64_t address = row.address.load(std::memory_order_acquire);
      const uint64_t bytes = row.bytes.load(std::memory_order_acquire);
      if (row.state.load() != state) continue;
      if (address != bytes * 4096) {
        ADD_FAILURE() << "address " << address << " with " << bytes << " bytes";
        return;
      }
      ++good;
    }
  });
  for (uint64_t i = 1; i < 30'000 || (good == 0 && i < 100'000'000); ++i) {
    const uint64_t size = i % 1000 + 1;
    drop(*registry, add(*registry, size * 4096, size));
  }
  stop = true;
  reader.join();
  EXPECT_GT(good.load(), 0U);
}

TEST(RegionRegistryTest, FindContainingIsExactAtBothEnds) {
  auto registry = make_registry();
  auto record = add(*registry, 1000, 100);
  EXPECT_EQ(*registry->find_containing(1000, 100), record);
  EXPECT_EQ(*registry->find_containing(1099, 1), record);
  EXPECT_EQ(*registry->find_containing(1050, 0), record);
  EXPECT_EQ(registry->find_containing(999, 1).status().reason(), Reason::kNotRegistered);
  EXPECT_EQ(registry->find_containing(999, 2).status().reason(), Reason::kNotRegistered);
  EXPECT_EQ(registry->find_containing(1000, 101).status().reason(), Reason::kNotRegistered);
  EXPECT_EQ(registry->find_containing(1099, 2).status().reason(), Reason::kNotRegistered);
  EXPECT_EQ(registry->find_containing(1000, ~uint64_t{0}).status().reason(), Reason::kOverflow);
}

TEST(RegionRegistryTest, RangeAcrossTwoNeighboursIsInNeither) {
  auto registry = make_registry();
  add(*registry, 1000, 100);
  add(*registry, 1100, 100);
  EXPECT_EQ(registry->find_containing(1050, 100).status().reason(), Reason::kNotRegistered);
  auto both = add(*registry, 1000, 200);
  EXPECT_EQ(*registry->find_containing(1050, 100), both);
}

TEST(RegionRegistryTest, LookupsAgreeWithAModelUnderRandomOverlaps) {
  constexpr uint64_t kSeed = 20260101;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  SplitMix64 random(kSeed);
  auto registry = make_registry(256);
  std::vector<std::shared_ptr<RegionRecord>> model;
  std::vector<std::shared_ptr<RegionRecord>> retired;
  uint64_t found = 0;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t what = random.below(10);
    if (what < 3 && model.size() < 200) {
      const uint64_t bytes = random.below(8) == 0 ? 1 + random.below(5000) : 1 + random.below(60);
      model.push_back(add(*registry, 1 + random.below(10'000), bytes));
    } else if (what < 5 && !model.empty()) {
      const size_t victim = random.below(model.size());
      registry->retire(*model[victim]);
      retired.push_back(model[victim]);
      model.erase(model.begin() + static_cast<ptrdiff_t>(victim));
    }
    if (retired.size() > 20) {
      registry->forget(*retired.front());
      retired.erase(retired.begin());
    }
    const uint64_t address = random.below(11'000);
    const uint64_t bytes = random.below(100);
    const auto holds = [&](const std::shared_ptr<RegionRecord>& r) {
      return r->desc.address <= address && address + bytes <= r->desc.address + r->desc.bytes;
    };
    const bool expected = std::any_of(model.begin(), model.end(), holds);
    const auto got = registry->find_containing(address, bytes);
    ASSERT_EQ(got.ok(), expected) << "step " << step << " at " << address << " + " << bytes;
    if (!got.ok()) continue;
    ASSERT_TRUE(holds(*got));
    ASSERT_NE(std::find(model.begin(), model.end(), *got), model.end());
    ++found;
  }
  EXPECT_EQ(registry->live().size(), model.size());
  EXPECT_EQ(registry->size(), model.size() + retired.size());
  EXPECT_GT(found, 1000U);
}

TEST(RegionRegistryTest, ThreadsRegisterAndForgetWithoutLosingRows) {
  auto registry = make_registry(64);
  std::vector<std::thread> threads;
  for (uint64_t id = 1; id <= 4; ++id) {
    threads.emplace_back([&registry, id] {
      for (int i = 0; i < 2000; ++i) {
        auto record = add(*registry, id << 20, 100);
        ASSERT_EQ(record->desc.address, id << 20);
        ASSERT_TRUE(registry->find(record->desc.index, record->desc.generation).ok());
        ASSERT_TRUE(registry->find_containing(id << 20, 100).ok());
        drop(*registry, record);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry->size(), 0U);
  EXPECT_EQ(registry->registered_bytes(), 0U);
  EXPECT_LE(registry->header()->rows_used.load(), 4U);
}

// The bound of the release build on a quiet machine is 20 ms; what a test can hold in any build is
// that a late round costs what an early one did.
TEST(RegionRegistryTest, TenThousandViewsUseTheSameRowsInEveryRound) {
  constexpr int kViews = 10'000;
  auto registry = make_registry(65'536);
  std::vector<std::shared_ptr<RegionRecord>> records(kViews);
  for (int round = 0; round < 30; ++round) {
    for (size_t i = 0; i < kViews; ++i) records[i] = add(*registry, 4096 + i * 64, 64);
    for (auto& record : records) drop(*registry, record);
    ASSERT_EQ(registry->size(), 0U);
  }
  // What a round costs is measured by `stagelink bench suite engine --only register`.
  EXPECT_EQ(registry->header()->rows_used.load(), static_cast<uint32_t>(kViews));
}

}  // namespace
}  // namespace stagelink::memory
