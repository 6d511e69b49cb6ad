#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "base/runtime_dir.h"
#include "metrics/engine_metrics.h"
#include "unit/cli/run_command.h"

namespace stagelink::cli {
namespace {

namespace fs = std::filesystem;

constexpr InstanceId kInstance{0x0123456789abcdef, 7};

class StatCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/sl-stat-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::unique_ptr<metrics::EngineMetrics> engine() const {
    return metrics::EngineMetrics::create(dir_, "decode-0", kInstance);
  }
  CommandOutcome stat(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"stat", "--runtime-dir", dir_});
    return run_command(std::move(arguments));
  }

  std::string dir_;
};

TEST_F(StatCommandTest, ALiveEngineIsShown) {
  const auto metrics = engine();
  metrics->add(metrics::Counter::kReadBytes, 4096);
  for (const std::string& target : {std::string("all"), std::to_string(::getpid())}) {
    const CommandOutcome outcome = stat({target});
    EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
    EXPECT_NE(outcome.out.find("decode-0"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("4.00 KiB"), std::string::npos) << outcome.out;
  }
}

TEST_F(StatCommandTest, JsonAndPrometheusAreForPrograms) {
  const auto metrics = engine();
  const auto json = nlohmann::json::parse(stat({"--json"}).out);
  ASSERT_EQ(json.size(), 1U);
  EXPECT_EQ(json[0]["pid"], ::getpid());
  EXPECT_EQ(stat({"--prometheus"}).out, metrics->prometheus_text());
  EXPECT_EQ(stat({"--prometheus", "--json"}).exit_code, kExitUsage);
}

TEST_F(StatCommandTest, WatchShowsRatesFromTheSecondLookOn) {
  const auto metrics = engine();
  const CommandOutcome outcome = stat({"--watch", "--interval", "10ms", "--count", "2"});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  const size_t first = outcome.out.find("decode-0");
  const size_t second = outcome.out.find("decode-0", first + 1);
  ASSERT_NE(second, std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.substr(0, second).find("/s"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("0 B/s", second), std::string::npos) << outcome.out;
}

TEST_F(StatCommandTest, AProcessWithoutEngineIsExitOneAndNamed) {
  const auto metrics = engine();
  const CommandOutcome outcome = stat({"1"});
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_NE(outcome.err.find("no engine of this user runs in process 1"), std::string::npos);
  EXPECT_NE(outcome.err.find(dir_), std::string::npos) << outcome.err;
}

TEST_F(StatCommandTest, NoEngineAtAllIsNoFailure) {
  EXPECT_EQ(stat({}).exit_code, kExitOk);
  EXPECT_NE(stat({}).out.find("no engine"), std::string::npos);
  EXPECT_EQ(stat({"--json"}).out, "[]\n");
}

TEST_F(StatCommandTest, ADeadEngineIsNotShown) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto metrics = metrics::EngineMetrics::create(dir_, "dead", kInstance);
    static_cast<void>(metrics.release());
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(fs::exists(runtime_entry_path(dir_, child, kInstance, "stat")));
  EXPECT_EQ(stat({}).out.find("dead"), std::string::npos);
  EXPECT_EQ(stat({std::to_string(child)}).exit_code, kExitFailed);
}

TEST_F(StatCommandTest, AnUnreadableFileIsReportedAndTheOthersAreShown) {
  const auto metrics = engine();
  std::ofstream(dir_ + "/1-00000000.stat") << "rubbish";
  const CommandOutcome outcome = stat({});
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_NE(outcome.err.find("1-00000000.stat"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("decode-0"), std::string::npos);
}

TEST_F(StatCommandTest, WrongUsageIsExitTwo) {
  for (const char* target : {"0", "-5", "everything", "99999999999"}) {
    EXPECT_EQ(stat({"--", target}).exit_code, kExitUsage) << target;
  }
  EXPECT_EQ(stat({"--interval", "5"}).exit_code, kExitUsage);
  EXPECT_EQ(stat({"--interval", "9ms"}).exit_code, kExitUsage);
  EXPECT_EQ(stat({"--interval", "10ms"}).exit_code, kExitOk);
}

class ConfigCommandTest : public StatCommandTest {};

TEST_F(ConfigCommandTest, CheckPrintsWhatAFileGives) {
  std::ofstream(dir_ + "/e.yaml") << "engine:\n  copy_threads: 3\n";
  const CommandOutcome outcome = run_command({"config", "check", dir_ + "/e.yaml"});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_NE(outcome.out.find("  copy_threads: 3\n"), std::string::npos) << outcome.out;
}

TEST_F(ConfigCommandTest, CheckNamesWhatIsWrong) {
  std::ofstream(dir_ + "/e.yaml") << "engine:\n  copy_thread: 3\n";
  const CommandOutcome outcome = run_command({"config", "check", dir_ + "/e.yaml"});
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_NE(outcome.err.find(dir_ + "/e.yaml:2:3: unknown option `copy_thread`; did you mean"),
            std::string::npos)
      << outcome.err;
  EXPECT_EQ(run_command({"config", "check", dir_ + "/none.yaml"}).exit_code, kExitUsage);
}

TEST_F(ConfigCommandTest, ShowTakesArgumentsOverTheFile) {
  std::ofstream(dir_ + "/e.yaml") << "engine:\n  copy_threads: 3\n  max_peers: 5\n";
  const CommandOutcome outcome =
      run_command({"config", "show", "--config", dir_ + "/e.yaml", "--option", "copy_threads=4",
                   "--option", "name=x,y"});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_NE(outcome.out.find("  copy_threads: 4\n"), std::string::npos);
  EXPECT_NE(outcome.out.find("  max_peers: 5\n"), std::string::npos);
  EXPECT_NE(outcome.out.find("  name: \"x,y\"\n"), std::string::npos) << outcome.out;
}

TEST_F(ConfigCommandTest, DocsPrintsTheCommittedPage) {
  std::ifstream file(std::string(STAGELINK_SOURCE_DIR) + "/docs/options.md");
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(run_command({"config", "docs"}).out, committed.str());
}

}  // namespace
}  // namespace stagelink::cli
