#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/bench/suites.h"

namespace stagelink::cli::bench {
namespace {

CaseResult row(Goal goal, double value, double target) {
  return {.name = "case", .value = value, .unit = "x", .goal = goal, .target = target};
}

TEST(CaseResultTest, TargetItselfHoldsInBothDirections) {
  EXPECT_TRUE(row(Goal::kAtLeast, 1.0, 1.0).holds());
  EXPECT_TRUE(row(Goal::kAtMost, 1.0, 1.0).holds());
}

TEST(CaseResultTest, WrongSideOfTheTargetDoesNotHold) {
  EXPECT_FALSE(row(Goal::kAtLeast, 0.99, 1.0).holds());
  EXPECT_FALSE(row(Goal::kAtMost, 1.01, 1.0).holds());
}

TEST(SuiteReportTest, JsonIsAListOfRowsWithTheirVerdict) {
  const std::vector<CaseResult> rows = {row(Goal::kAtLeast, 1.25, 1.0),
                                        row(Goal::kAtMost, 7.5, 5.0)};
  const auto json = nlohmann::json::parse(rows_as_json(rows));
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["case"], "case");
  EXPECT_DOUBLE_EQ(json[0]["value"].get<double>(), 1.25);
  EXPECT_EQ(json[0]["relation"], ">=");
  EXPECT_EQ(json[0]["holds"], true);
  EXPECT_EQ(json[1]["unit"], "x");
  EXPECT_DOUBLE_EQ(json[1]["target"].get<double>(), 5.0);
  EXPECT_EQ(json[1]["holds"], false);
}

TEST(SuiteReportTest, LimitIsShownWhereARowHasOne) {
  std::vector<CaseResult> rows = {row(Goal::kAtLeast, 20, 30), row(Goal::kAtLeast, 20, 30)};
  rows[1].limit = 21.5;
  const auto json = nlohmann::json::parse(rows_as_json(rows));
  EXPECT_FALSE(json[0].contains("limit"));
  EXPECT_DOUBLE_EQ(json[1]["limit"].get<double>(), 21.5);
  EXPECT_NE(rows_as_table(rows).find("streaming memcpy: 21.5"), std::string::npos);
}

TEST(SuiteReportTest, NoRowsAreAnEmptyList) { EXPECT_EQ(rows_as_json({}), "[]"); }

TEST(SuiteTest, UnknownGroupIsRefusedWithTheNamesThatExist) {
  SuiteOptions options;
  options.only = "copies";
  SuiteContext context(options);
  const Status status = run_suite("engine", context);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("layers"), std::string_view::npos);
  const Status other = run_suite("network", context);
  EXPECT_EQ(other.code(), Code::kInvalidArgument);
  EXPECT_NE(other.message().find("many-peers"), std::string_view::npos);
}

}  // namespace
}  // namespace stagelink::cli::bench
