#include "base/deadline.h"

#include <gtest/gtest.h>

namespace stagelink {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(DeadlineTest, ZeroAndNegativeHavePassedAtOnce) {
  EXPECT_TRUE(Deadline::in(Duration::zero()).passed());
  EXPECT_TRUE(Deadline::in(milliseconds(-5)).passed());
  EXPECT_EQ(Deadline::in(milliseconds(-5)).left(), Duration::zero());
  EXPECT_EQ(Deadline::in(Duration::min()).left_ms(), 0);
}

TEST(DeadlineTest, AFutureOneHasTimeLeftButNoMoreThanAsked) {
  const Deadline deadline = Deadline::in(hours(1));
  EXPECT_FALSE(deadline.passed());
  EXPECT_GT(deadline.left(), hours(1) - std::chrono::minutes(1));
  EXPECT_LE(deadline.left(), hours(1));
}

TEST(DeadlineTest, TheLongestWaitIsBoundedAndDoesNotOverflow) {
  const Deadline deadline = Deadline::in(Duration::max());
  EXPECT_FALSE(deadline.passed());
  EXPECT_LE(deadline.left(), Deadline::kLongest);
  EXPECT_EQ(deadline.left_ms(), 1'000'000'000);
}

TEST(DeadlineTest, MillisecondsAreRoundedUp) {
  // Less than a millisecond is left from the start, so a rounding down would give 0 always.
  const Deadline deadline = Deadline::in(std::chrono::microseconds(900));
  const int ms = deadline.left_ms();
  EXPECT_TRUE(ms == 1 || deadline.passed()) << ms;
}

TEST(DeadlineTest, EarlierPicksTheSoonerOfTwo) {
  const Deadline soon = Deadline::in(hours(1));
  const Deadline late = Deadline::in(hours(2));
  EXPECT_LE(Deadline::earlier(late, soon).left(), hours(1));
  EXPECT_LE(Deadline::earlier(soon, late).left(), hours(1));
}

}  // namespace
}  // namespace stagelink
