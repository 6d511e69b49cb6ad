#include "metrics/engine_metrics.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/runtime_dir.h"
#include "metrics/stat_catalog.h"
#include "metrics/stat_snapshot.h"

namespace stagelink::metrics {
namespace {

namespace fs = std::filesystem;

constexpr InstanceId kInstance{0x0123456789abcdef, 0x1122334455667788};

class EngineMetricsTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/sl-metrics-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::unique_ptr<EngineMetrics> create(const std::string& name = "decode-0") const {
    return EngineMetrics::create(dir_, name, kInstance);
  }
  std::string path() const { return runtime_entry_path(dir_, ::getpid(), kInstance, "stat"); }
  StatSnapshot read() const {
    auto snapshot = read_stat_file(path());
    EXPECT_TRUE(snapshot.ok()) << snapshot.status().to_string();
    return snapshot.ok() ? *snapshot : StatSnapshot{};
  }

  std::string dir_;
};

TEST_F(EngineMetricsTest, TheFileNamesItsEngine) {
  const auto metrics = create();
  const StatSnapshot snapshot = read();
  EXPECT_EQ(snapshot.process, ProcessId::self());
  EXPECT_EQ(snapshot.instance, kInstance);
  EXPECT_EQ(snapshot.engine_name, "decode-0");
  EXPECT_GT(snapshot.started_unix_ms, 1'700'000'000'000U);
  EXPECT_EQ(snapshot.samples.size(), stat_catalog().size());
  EXPECT_EQ(fs::status(path()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(EngineMetricsTest, ALongNameIsCutBetweenCharacters) {
  const std::string name = std::string(126, 'n') + "\xc3\xa4";  // 128 bytes, the longest option.
  const auto metrics = create(name);
  EXPECT_EQ(read().engine_name, std::string(126, 'n'));  // The file has room for 127.
}

TEST_F(EngineMetricsTest, EveryCounterAndGaugeHasItsOwnRow) {
  const auto metrics = create();
  for (size_t i = 0; i < kCounterCount; ++i) metrics->add(static_cast<Counter>(i), 100 + i);
  for (size_t i = 0; i < kGaugeCount; ++i) metrics->add(static_cast<Gauge>(i), -5 - int64_t(i));
  const StatSnapshot snapshot = read();
  for (size_t i = 0; i < kCounterCount; ++i) {
    EXPECT_EQ(snapshot.samples[i].counter, 100 + i) << snapshot.samples[i].name;
    EXPECT_TRUE(snapshot.samples[i].name.ends_with("_total")) << snapshot.samples[i].name;
  }
  for (size_t i = 0; i < kGaugeCount; ++i) {
    EXPECT_EQ(snapshot.samples[kCounterCount + i].gauge, -5 - int64_t(i));
  }
  EXPECT_EQ(snapshot.find("stagelink_faults_injected_total")->counter, 100 + kCounterCount - 1);
  EXPECT_EQ(snapshot.find("stagelink_retiring_regions")->gauge, -5 - int64_t(kGaugeCount) + 1);
  EXPECT_EQ(snapshot.find("stagelink_no_such_thing"), nullptr);
}

TEST_F(EngineMetricsTest, HistogramCountsOnBothSidesOfABound) {
  const auto metrics = create();
  metrics->observe(Histogram::kTransferBytes, 64);  // le="64"
  metrics->observe(Histogram::kTransferBytes, 65);  // le="256"
  metrics->observe(Histogram::kTransferBytes, 1e12);
  const StatSnapshot snapshot = read();
  const StatSample& sample = *snapshot.find("stagelink_transfer_size_bytes");
  ASSERT_EQ(sample.buckets.size(), sample.bounds.size() + 1);
  EXPECT_EQ(sample.bounds.front(), 64.0);
  EXPECT_EQ(sample.buckets[0], 1U);
  EXPECT_EQ(sample.buckets[1], 1U);
  EXPECT_EQ(sample.buckets.back(), 1U);
  EXPECT_EQ(sample.sum, 64.0 + 65.0 + 1e12);
  EXPECT_EQ(snapshot.find("stagelink_transfer_duration_seconds")->sum, 0.0);
}

TEST_F(EngineMetricsTest, FailuresAreCountedByTheirReason) {
  const auto metrics = create();
  metrics->fail(Reason::kMemlock);
  metrics->fail(Reason::kMemlock);
  metrics->fail(Reason::kSystem);
  metrics->fail(Reason::kOk);
  metrics->fail(static_cast<Reason>(255));
  uint64_t total = 0;
  for (const StatSample& sample : read().samples) {
    if (sample.name != "stagelink_failures_total") continue;
    total += sample.counter;
    if (sample.labels == "code=\"limit\",scope=\"call\",reason=\"memlock\"") {
      EXPECT_EQ(sample.counter, 2U);
    }
  }
  EXPECT_EQ(total, 3U);
}

TEST_F(EngineMetricsTest, NothingIsLostBetweenThreads) {
  const auto metrics = create();
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&metrics] {
        for (int k = 0; k < 10000; ++k) {
          metrics->add(Counter::kReadBytes, 3);
          metrics->observe(Histogram::kTransferSeconds, 1.0);
        }
      });
    }
    EXPECT_FALSE(metrics->prometheus_text().empty());  // While they add.
  }
  const StatSnapshot snapshot = read();
  EXPECT_EQ(snapshot.find("stagelink_read_bytes_total")->counter, 120000U);
  EXPECT_EQ(snapshot.find("stagelink_transfer_duration_seconds")->sum, 40000.0);
}

TEST_F(EngineMetricsTest, CloseRemovesTheFileAndCountingGoesOn) {
  const auto metrics = create();
  metrics->close();
  metrics->close();
  EXPECT_FALSE(fs::exists(path()));
  metrics->add(Counter::kPeersLost);
  EXPECT_NE(metrics->prometheus_text().find("stagelink_peers_lost_total{engine=\"decode-0\"} 1\n"),
            std::string::npos);
}

TEST_F(EngineMetricsTest, AForkedChildDoesNotRemoveTheFile) {
  auto metrics = create();
  const pid_t child = ::fork();
  if (child == 0) {
    metrics.reset();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(path()));
}

TEST_F(EngineMetricsTest, AMissingDirectoryGivesPrivateCountersAndOneWarning) {
  testing::internal::CaptureStderr();
  const auto metrics = EngineMetrics::create(dir_ + "/missing", "x", kInstance);
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
  EXPECT_NE(warning.find(dir_ + "/missing"), std::string::npos);
  metrics->add(Counter::kReadBytes, 7);
  EXPECT_NE(metrics->prometheus_text().find("stagelink_read_bytes_total{engine=\"x\"} 7\n"),
            std::string::npos);
}

TEST_F(EngineMetricsTest, TheFileOfAKilledProcessIsReclaimedAndALiveOnesIsNot) {
  const auto alive = create();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto metrics = EngineMetrics::create(dir_, "child", kInstance);
    [[maybe_unused]] const ssize_t written = ::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(reclaim_dead_entries(dir_), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(reclaim_dead_entries(dir_), 1);
  EXPECT_TRUE(fs::exists(path()));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(EngineMetricsTest, AProcessKilledWhileItMakesTheFileLeavesNoHalfOne) {
  const pid_t child = ::fork();
  if (child == 0) {
    // The first byte of the file ends the process: its name is there, its content is not.
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_CORE, &none) != 0 || ::setrlimit(RLIMIT_FSIZE, &none) != 0) ::_exit(1);
    ::signal(SIGXFSZ, SIG_DFL);
    const auto metrics = EngineMetrics::create(dir_, "child", kInstance);
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), SIGXFSZ);
  EXPECT_TRUE(fs::exists(runtime_entry_path(dir_, child, kInstance, "init")));
  EXPECT_FALSE(fs::exists(runtime_entry_path(dir_, child, kInstance, "stat")));
  EXPECT_EQ(reclaim_dead_entries(dir_), 1);  // At once, however new it is.
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(EngineMetricsTest, AFullFileSystemGivesPrivateCountersAndLeavesNothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit little{4096, 4096};
    ::signal(SIGXFSZ, SIG_IGN);  // Then it is an error, as on a full file system.
    if (::setrlimit(RLIMIT_FSIZE, &little) != 0) ::_exit(1);
    set_log_level(LogLevel::kOff);
    const auto metrics = EngineMetrics::create(dir_, "child", kInstance);
    const std::string text = metrics->prometheus_text();
    ::_exit(text.find("stagelink_read_bytes_total{engine=\"child\"} 0\n") == std::string::npos ? 2
                                                                                               : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(EngineMetricsTest, TheFileOfAnEarlierProcessWithThisPidIsReplaced) {
  std::ofstream(path()) << "of former times";
  const auto metrics = create();
  EXPECT_EQ(read().engine_name, "decode-0");
}

TEST_F(EngineMetricsTest, ReclaimingMeanwhileTakesNothingFromALiveEngine) {
  std::atomic<bool> stop{false};
  std::jthread reclaimer([&] {
    while (!stop.load()) reclaim_dead_entries(dir_);
  });
  for (int i = 0; i < 100; ++i) {
    const auto metrics = create();
    EXPECT_TRUE(read_stat_file(path()).ok());
  }
  stop = true;
}

// The rules of the text format 0.0.4, line by line.
class ScrapeChecker {
 public:
  explicit ScrapeChecker(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) check(line);
    EXPECT_TRUE(text.ends_with('\n'));
  }
  size_t families() const { return seen_.size(); }

 private:
  void check(const std::string& line) {
    std::istringstream words(line);
    std::string first;
    std::string second;
    std::string name;
    words >> first;
    if (first == "#") {
      words >> second >> name;
      if (second == "HELP") {
        EXPECT_TRUE(seen_.insert(name).second) << "family twice: " << name;
        family_ = name;
        type_.clear();
      } else {
        EXPECT_EQ(second, "TYPE");
        EXPECT_EQ(name, family_);
        words >> type_;
        EXPECT_TRUE(type_ == "counter" || type_ == "gauge" || type_ == "histogram") << line;
        EXPECT_EQ(type_ == "counter", family_.ends_with("_total")) << line;
      }
      return;
    }
    check_sample(line);
  }
  void check_sample(const std::string& line) {
    const size_t brace = line.find('{');
    const size_t end = line.rfind("} ");
    ASSERT_NE(brace, std::string::npos) << line;
    ASSERT_NE(end, std::string::npos) << line;
    const std::string name = line.substr(0, brace);
    const bool own = name == family_;
    const bool part =
        type_ == "histogram" &&
        (name == family_ + "_bucket" || name == family_ + "_sum" || name == family_ + "_count");
    EXPECT_TRUE(own || part) << line << " stands outside its family " << family_;
    EXPECT_TRUE(series_.insert(line.substr(0, end)).second) << "series twice: " << line;
    size_t used = 0;
    EXPECT_NO_THROW(std::stod(line.substr(end + 2), &used)) << line;
    EXPECT_EQ(used, line.size() - end - 2) << line;
  }

  std::set<std::string> seen_;
  std::set<std::string> series_;
  std::string family_;
  std::string type_;
};

TEST_F(EngineMetricsTest, TheTextIsAValidScrape) {
  const auto metrics = create();
  metrics->observe(Histogram::kTransferSeconds, 3e-6);
  metrics->fail(Reason::kTimedOut);
  const ScrapeChecker checker(metrics->prometheus_text());
  // info, start time, and one family for all failures.
  EXPECT_EQ(checker.families(), kCounterCount + kGaugeCount + kHistogramCount + 3);
}

TEST_F(EngineMetricsTest, BucketsOfTheTextAreCumulativeAndEndAtTheCount) {
  const auto metrics = create("e");
  for (const double value : {1e-6, 2e-6, 100.0}) {
    metrics->observe(Histogram::kTransferSeconds, value);
  }
  const std::string text = metrics->prometheus_text();
  const std::string name = "stagelink_transfer_duration_seconds";
  EXPECT_NE(text.find(name + "_bucket{engine=\"e\",le=\"1e-06\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find(name + "_bucket{engine=\"e\",le=\"2.5e-06\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find(name + "_bucket{engine=\"e\",le=\"10\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find(name + "_bucket{engine=\"e\",le=\"+Inf\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find(name + "_count{engine=\"e\"} 3\n"), std::string::npos);
}

TEST_F(EngineMetricsTest, AHostileEngineNameIsEscaped) {
  const auto metrics = create("a\"b\\c\nd");
  const std::string text = metrics->prometheus_text();
  EXPECT_NE(text.find("stagelink_peers{engine=\"a\\\"b\\\\c?d\"} 0\n"), std::string::npos);
  const ScrapeChecker checker(text);
}

}  // namespace
}  // namespace stagelink::metrics
