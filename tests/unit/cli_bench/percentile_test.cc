#include "cli/bench/rig/percentile.h"

#include <gtest/gtest.h>

namespace stagelink::cli::bench {
namespace {

TEST(PercentileTest, MedianOfAnOddCountIsTheMiddleOne) {
  EXPECT_DOUBLE_EQ(percentile({5, 1, 3}, 0.5), 3);
}

TEST(PercentileTest, MedianOfAnEvenCountIsTheLowerMiddleOne) {
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0.5), 2);
}

TEST(PercentileTest, EndsAreTheSmallestAndTheLargest) {
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0), 1);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 1), 4);
}

TEST(PercentileTest, NinetyNinthOfTwentyIsTheLargest) {
  std::vector<double> values;
  for (int i = 1; i <= 20; ++i) values.push_back(i);
  EXPECT_DOUBLE_EQ(percentile(values, 0.99), 20);
  EXPECT_DOUBLE_EQ(percentile(values, 0.95), 19);
}

TEST(PercentileTest, NothingGivesZero) { EXPECT_DOUBLE_EQ(percentile({}, 0.5), 0); }

}  // namespace
}  // namespace stagelink::cli::bench
