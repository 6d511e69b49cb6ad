#include "cli/stat/stat_report.h"

#include <chrono>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace stagelink::cli {
namespace {

using metrics::StatKind;
using metrics::StatSample;
using metrics::StatSnapshot;

StatSample counter(const char* name, uint64_t value, const char* labels = "") {
  StatSample sample;
  sample.name = name;
  sample.labels = labels;
  sample.counter = value;
  sample.gauge = static_cast<int64_t>(value);
  return sample;
}

StatSnapshot sample_engine() {
  StatSnapshot out;
  out.process.pid = 4711;
  out.engine_name = "decode-0";
  out.samples.push_back(counter("stagelink_read_bytes_total", 3 << 20));
  out.samples.push_back(counter("stagelink_failures_total", 2, "code=\"a\",reason=\"x\\\"y\""));
  out.samples.push_back(counter("stagelink_failures_total", 0, "code=\"a\",reason=\"silent\""));
  StatSample gauge = counter("stagelink_peers", 0);
  gauge.kind = StatKind::kGauge;
  gauge.gauge = -1;
  out.samples.push_back(gauge);
  StatSample histogram;
  histogram.name = "stagelink_transfer_duration_seconds";
  histogram.kind = StatKind::kHistogram;
  histogram.bounds = {1e-6, 1e-3};
  histogram.buckets = {90, 9, 1};
  histogram.sum = 2.0;
  out.samples.push_back(histogram);
  return out;
}

TEST(StatReportTest, TheTableNamesTheEngineAndHumanUnits) {
  const std::string table = stat_table(sample_engine(), std::nullopt);
  EXPECT_NE(table.find("decode-0  pid 4711"), std::string::npos) << table;
  EXPECT_NE(table.find("3.00 MiB"), std::string::npos) << table;
  EXPECT_NE(table.find("reason=\"x"), std::string::npos) << table;
  EXPECT_EQ(table.find("silent"), std::string::npos) << table;
  EXPECT_NE(table.find("100 mean 20 ms, p50 <= 1 us, p99 <= 1 ms"), std::string::npos) << table;
}

TEST(StatReportTest, RatesComeFromTheEarlierLook) {
  StatSnapshot before = sample_engine();
  before.samples[0].counter -= 1 << 20;
  const EarlierLook look{before, std::chrono::milliseconds(500)};
  const std::string table = stat_table(sample_engine(), look);
  EXPECT_NE(table.find("2.00 MiB/s"), std::string::npos) << table;
}

TEST(StatReportTest, QuantilesAreBucketBounds) {
  StatSample sample = sample_engine().samples.back();
  EXPECT_EQ(histogram_quantile(sample, 0.90), 1e-6);
  EXPECT_EQ(histogram_quantile(sample, 0.901), 1e-3);
  EXPECT_EQ(histogram_quantile(sample, 0.99), 1e-3);
  EXPECT_EQ(histogram_quantile(sample, 1.0), 1e-3);  // Above the last bound.
  sample.buckets = {0, 0, 0};
  EXPECT_EQ(histogram_quantile(sample, 0.5), std::nullopt);
}

TEST(StatReportTest, LabelsAreSplitAndUnescaped) {
  const auto labels = split_labels("a=\"1,2\",b=\"x\\\"y\\\\\",c=\"\"");
  ASSERT_EQ(labels.size(), 3U);
  EXPECT_EQ(labels[0].second, "1,2");
  EXPECT_EQ(labels[1].second, "x\"y\\");
  EXPECT_EQ(labels[2].first, "c");
  EXPECT_TRUE(split_labels("").empty());
}

TEST(StatReportTest, TheJsonHoldsEverySample) {
  StatSnapshot engine = sample_engine();
  engine.engine_name = "bad \xff name";
  const auto json = nlohmann::json::parse(stat_json({engine}));
  ASSERT_EQ(json.size(), 1U);
  EXPECT_EQ(json[0]["pid"], 4711);
  const auto& metrics = json[0]["metrics"];
  ASSERT_EQ(metrics.size(), 5U);
  EXPECT_EQ(metrics[0]["value"], 3 << 20);
  EXPECT_EQ(metrics[1]["labels"]["reason"], "x\"y");
  EXPECT_EQ(metrics[3]["value"], -1);
  EXPECT_EQ(metrics[4]["count"], 100);
  EXPECT_EQ(metrics[4]["p99"], 1e-3);
  EXPECT_EQ(stat_json({}), "[]\n");
}

}  // namespace
}  // namespace stagelink::cli
