#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/replay/report/axis.h"
#include "cli/replay/report/plot.h"
#include "cli/replay/report/progress.h"
#include "cli/replay/report/statistics.h"
#include "cli/replay/report/table.h"
#include "unit/cli/replay/temp_file.h"

namespace stagelink::cli::replay {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using State = RequestRecord::State;

TEST(StatisticsTest, APercentileIsAValueThatWasSeen) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({7}, 0.99), 7);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 0.51), 3);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 1), 4);
}

TEST(StatisticsTest, TimeThatBatchesShareCountsOnce) {
  EXPECT_EQ(covered_ns({{0, 0, 100, 50}, {1, 0, 120, 10}, {2, 0, 140, 30}, {3, 0, 300, 5}}), 75);
  EXPECT_EQ(covered_ns({}), 0);
}

class ReportTest : public ::testing::Test {
 protected:
  ReportTest() {
    plan_.model = "llama-3.1-8b";
    plan_.model_layers = 32;
    plan_.workload = {"t.jsonl", std::vector<TraceRequest>(3)};
    record_.requests.resize(3);
    for (uint32_t i = 0; i < 3; ++i) {
      record_.requests[i] = {State::kDone, 10, 2, 10, 0, 1000, 5000};
      record_.transfers.push_back({i, 4000, 10'000 * i, 2000});
    }
  }
  nlohmann::json json() const { return to_json(plan_, record_, summarize(plan_, record_)); }
  RunPlan plan_;
  RunRecord record_;
};

TEST_F(ReportTest, FiguresAddUp) {
  const Statistics s = summarize(plan_, record_);
  EXPECT_EQ(s.blocks, 30U);
  EXPECT_EQ(s.bytes, 12'000U);
  EXPECT_DOUBLE_EQ(s.gb_per_s, 2.0);
  EXPECT_DOUBLE_EQ(s.limit_gb_per_s, 4.0);
  EXPECT_DOUBLE_EQ(s.ratio_to_limit, 0.5);
  EXPECT_DOUBLE_EQ(s.p50_us, 2.0);
  EXPECT_TRUE(succeeded(record_, s));
}

TEST_F(ReportTest, ARequestThatWasMovedTwiceSaysNothingAboutTheLimit) {
  record_.transfers.push_back({1, 4000, 50'000, 900'000});
  EXPECT_DOUBLE_EQ(summarize(plan_, record_).ratio_to_limit, 0.5);
}

TEST_F(ReportTest, AnOpenRequestCountsAsLost) {
  record_.requests[2].state = State::kOpen;
  const Statistics s = summarize(plan_, record_);
  EXPECT_EQ(s.lost_requests, 1U);
  EXPECT_FALSE(succeeded(record_, s));
}

TEST_F(ReportTest, AWrongBlockFailsTheRun) {
  record_.requests[0].wrong_blocks = 1;
  EXPECT_EQ(json()["ok"], false);
  EXPECT_EQ(json()["wrong_blocks"], 1);
}

TEST_F(ReportTest, EventsOfRanksAreTaken) {
  EXPECT_TRUE(record_.take({{"event", "error"}, {"cause", "checksum"}, {"count", 2}}));
  EXPECT_TRUE(record_.take({{"event", "lost"}, {"request", 1}, {"cause", "timed_out"}}));
  EXPECT_FALSE(record_.take({{"event", "pong"}}));
  EXPECT_EQ(json()["errors"], nlohmann::json({{"checksum", 2}}));
  EXPECT_EQ(json()["lost_requests"], 1);
  EXPECT_THROW(record_.take({{"event", "lost"}, {"request", 99}, {"cause", "x"}}),
               std::out_of_range);
}

TEST_F(ReportTest, TheJsonHasTheKeysThatScriptsRead) {
  for (const char* key :
       {"transport", "mode", "requests", "blocks", "bytes", "verified_blocks", "wrong_blocks",
        "lost_requests", "errors", "gb_per_s", "ratio_to_limit", "p50_us", "p99_us"}) {
    EXPECT_TRUE(json().contains(key)) << key;
  }
}

TEST_F(ReportTest, TheTableEndsWithTheVerdict) {
  EXPECT_THAT(to_table(plan_, record_, summarize(plan_, record_)),
              HasSubstr("OK: 3 of 3 requests served, 0 wrong blocks"));
  record_.failures.push_back("request 1 was lost: timed_out");
  EXPECT_THAT(to_table(plan_, record_, summarize(plan_, record_)),
              HasSubstr("FAILED: request 1 was lost: timed_out"));
}

TEST_F(ReportTest, ThePictureHasADotForEachBatchAndItsLimit) {
  const std::string svg = to_svg(plan_, record_, summarize(plan_, record_));
  size_t dots = 0;
  for (size_t at = svg.find("<circle"); at != std::string::npos; at = svg.find("<circle", at + 1)) {
    ++dots;
  }
  EXPECT_EQ(dots, 3U + 3U + 2U);  // With the two of the key.
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST_F(ReportTest, APictureOfARunThatMovedNothingSaysSo) {
  record_.transfers.clear();
  EXPECT_THAT(to_svg(plan_, record_, summarize(plan_, record_)), HasSubstr("No batch was moved"));
}

TEST(PlotTest, ThePathIsCheckedBeforeTheRun) {
  const TempDir dir;
  EXPECT_TRUE(check_plot_path(dir.path() + "/a.svg").ok());
  EXPECT_EQ(check_plot_path(dir.path() + "/a.bmp").reason(), Reason::kInvalidArgument);
  EXPECT_EQ(check_plot_path(dir.path() + "/none/a.svg").reason(), Reason::kNotFound);
}

TEST(AxisTest, ALinearAxisReachesFromZeroToARoundNumber) {
  const Axis axis = Axis::linear(8.3, 0, 100);
  EXPECT_DOUBLE_EQ(axis.pixel(0), 0);
  EXPECT_DOUBLE_EQ(axis.pixel(10), 100);
  EXPECT_EQ(axis.ticks().front().label, "0");
  EXPECT_EQ(axis.ticks().back().label, "10");
}

TEST(AxisTest, ALogarithmicAxisHoldsItsValuesAndSpreadsDecadesEvenly) {
  const Axis axis = Axis::logarithmic(1, 1000, 0, 300);
  EXPECT_GT(axis.pixel(1), 0);
  EXPECT_LT(axis.pixel(1000), 300);
  EXPECT_NEAR(axis.pixel(10) - axis.pixel(1), axis.pixel(1000) - axis.pixel(100), 1e-9);
}

TEST(AxisTest, OneValueAloneMakesAnAxis) {
  EXPECT_GT(Axis::logarithmic(5, 5, 0, 100).pixel(5), 0);
  EXPECT_FALSE(Axis::linear(0, 0, 100).ticks().empty());
}

TEST(ProgressTest, TheBarFitsTheTerminal) {
  EXPECT_EQ(progress_line(1, 2, "x", 200),
            "[" + std::string(15, '#') + std::string(15, '.') + "] 1/2  x");
  EXPECT_EQ(progress_line(2, 2, "x", 200).find('.'), std::string::npos);
  EXPECT_EQ(progress_line(0, 0, "text", 10).size(), 10U);
}

}  // namespace
}  // namespace stagelink::cli::replay
