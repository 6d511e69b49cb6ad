#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "metrics/stat_catalog.h"

namespace stagelink::metrics {
namespace {

std::string read_doc(const std::string& name) {
  std::ifstream file(std::string(STAGELINK_SOURCE_DIR) + "/docs/" + name);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << name;
  return text.str();
}

TEST(MetricsDocsTest, ThePageNamesEveryMetric) {
  const std::string page = read_doc("metrics.md");
  for (const CatalogRow& row : stat_catalog()) {
    EXPECT_NE(page.find("| `" + row.name + "` |"), std::string::npos) << row.name;
  }
}

TEST(MetricsDocsTest, TheDashboardNamesOnlyMetricsThatExist) {
  std::set<std::string> known = {"stagelink_engine_info", "stagelink_start_time_seconds"};
  for (const CatalogRow& row : stat_catalog()) {
    known.insert(row.name);
    if (row.kind == StatKind::kHistogram) known.insert(row.name + "_bucket");
  }
  const std::string dashboard = read_doc("grafana.json");
  const std::regex name("stagelink_[a-z_]+");
  int found = 0;
  for (std::sregex_iterator at(dashboard.begin(), dashboard.end(), name), end; at != end; ++at) {
    EXPECT_TRUE(known.contains(at->str())) << at->str();
    ++found;
  }
  EXPECT_GT(found, 15);
}

}  // namespace
}  // namespace stagelink::metrics
