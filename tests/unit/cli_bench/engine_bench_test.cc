#include "cli/bench/engine_bench.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

namespace stagelink::cli::bench {
namespace {

using ::testing::HasSubstr;

TEST(EngineBenchTest, AReportSaysWhichPagesWereAskedFor) {
  EngineBenchReport report;
  EXPECT_EQ(nlohmann::json::parse(report.json())["huge_pages"], "try");
  report.options.huge_pages = "off";
  EXPECT_EQ(nlohmann::json::parse(report.json())["huge_pages"], "off");
  EXPECT_THAT(report.table(), HasSubstr("huge pages: off"));
}

TEST(EngineBenchTest, AnotherWordForHugePagesIsRefusedBeforeAnythingStarts) {
  for (const std::string command : {"engine", "suite engine"}) {
    const std::string line = std::string(STAGELINK_COMMAND) + " bench " + command +
                             " --huge-pages maybe >/dev/null 2>&1";
    const int status = std::system(line.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << command << " " << status;
  }
}

}  // namespace
}  // namespace stagelink::cli::bench
