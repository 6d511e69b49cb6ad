#include "memory/free_bitmap.h"

#include <set>

#include <gtest/gtest.h>

#include "base/random.h"

namespace stagelink::memory {
namespace {

TEST(FreeBitmapTest, StartsWithAllMembersAndNoMore) {
  for (const uint32_t count : {1U, 63U, 64U, 65U, 4096U, 4097U, 262'145U}) {
    FreeBitmap bitmap(count);
    for (uint32_t i = 0; i < count; ++i) {
      ASSERT_EQ(bitmap.lowest(), i) << count;
      bitmap.erase(i);
    }
    bitmap.insert(count - 1);
    EXPECT_EQ(bitmap.lowest(), count - 1);
  }
}

TEST(FreeBitmapTest, AgreesWithASetUnderRandomChanges) {
  constexpr uint64_t kSeed = 17;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  constexpr uint32_t kCount = 10'000;
  SplitMix64 random(kSeed);
  FreeBitmap bitmap(kCount);
  std::set<uint32_t> model;
  for (uint32_t i = 0; i < kCount; ++i) model.insert(i);
  for (int step = 0; step < 100'000; ++step) {
    const auto value = static_cast<uint32_t>(random.below(kCount));
    // Drifts from full to nearly empty and back.
    if (random.below(100) < (step / 25'000 % 2 == 0 ? 80U : 20U)) {
      bitmap.erase(value);
      model.erase(value);
    } else {
      bitmap.insert(value);
      model.insert(value);
    }
    ASSERT_EQ(bitmap.contains(value), model.contains(value));
    if (!model.empty()) {
      ASSERT_EQ(bitmap.lowest(), *model.begin()) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace stagelink::memory
