#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/runtime_dir.h"
#include "unit/cli/replay/temp_file.h"

// The whole command: parent, ranks, engines, over small traces.
namespace stagelink::cli::replay {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr auto kLongest = std::chrono::seconds(90);

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// `stagelink ...` as a process of its own, with a runtime directory of its own.
class ReplayCommandTest : public ::testing::Test {
 protected:
  void start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), STAGELINK_COMMAND);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    fs::create_directory(runtime());
    fs::permissions(runtime(), fs::perms::owner_all);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setenv("STAGELINK_RUNTIME_DIR", runtime().c_str(), 1);
    for (const auto& [fd, name] : {std::pair(1, "out"), std::pair(2, "err")}) {
      ::dup2(::open((dir_.path() + "/" + name).c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), fd);
    }
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int wait() {
    const Deadline deadline = Deadline::in(kLongest);
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (deadline.passed()) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, &status, 0);
        ADD_FAILURE() << "the command hangs";
        return -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int run(std::vector<std::string> arguments) {
    start(std::move(arguments));
    return wait();
  }
  std::string out() const { return read_file(dir_.path() + "/out"); }
  std::string err() const { return read_file(dir_.path() + "/err"); }
  Json json() const { return Json::parse(out()); }
  std::string runtime() const { return dir_.path() + "/run"; }

  // `requests` prompts of 600 to 1500 tokens that share their first id, `gap_ms` apart.
  std::string trace(uint32_t requests, uint32_t gap_ms = 0) const {
    std::string text;
    for (uint32_t i = 0; i < requests; ++i) {
      const uint32_t tokens = 600 + i * 331 % 900;
      std::string ids = "0";
      for (uint32_t id = 1; id * 512 < tokens; ++id) ids += "," + std::to_string(10 * i + id);
      text += "{\"timestamp\":" + std::to_string(i * gap_ms) +
              ",\"input_length\":" + std::to_string(tokens) +
              ",\"output_length\":1,\"hash_ids\":[" + ids + "]}\n";
    }
    return dir_.write("trace.jsonl", text);
  }
  void expect_nothing_left() const {
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator(runtime(), gone)) {
      ADD_FAILURE() << "left behind: " << entry.path();
    }
  }
  // Both ranks have opened their engines.
  void wait_for_engines(size_t count) const {
    const Deadline deadline = Deadline::in(kLongest);
    while (live_pids().size() < count) {
      ASSERT_FALSE(deadline.passed());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::vector<pid_t> live_pids() const {
    std::vector<pid_t> pids;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator(runtime(), gone)) {
      const auto parsed = parse_runtime_entry(entry.path().filename().string());
      // The socket comes last: an engine that has one is complete.
      if (parsed && parsed->kind == "sock") pids.push_back(parsed->pid);
    }
    return pids;
  }
  // The rank whose arguments contain `name`, such as "prefill-0".
  pid_t rank(const std::string& name) const {
    for (const pid_t pid : live_pids()) {
      const std::string line = read_file("/proc/" + std::to_string(pid) + "/cmdline");
      if (line.find(name) != std::string::npos) return pid;
    }
    return -1;
  }

  TempDir dir_;
  pid_t pid_ = -1;
};

struct Way {
  const char* mode;
  const char* transport;
};

class ReplayWayTest : public ReplayCommandTest, public ::testing::WithParamInterface<Way> {};

TEST_P(ReplayWayTest, EveryByteIsVerified) {
  const int code = run({"replay", "--trace", trace(12), "--mode", GetParam().mode, "--transport",
                        GetParam().transport, "--json"});
  ASSERT_EQ(code, 0) << err() << out();
  const Json result = json();
  EXPECT_EQ(result["requests"], 12);
  EXPECT_GT(result["blocks"], 0);
  EXPECT_EQ(result["verified_blocks"], result["blocks"]);
  EXPECT_GT(result["hit_blocks"], 0);  // The shared first id.
  EXPECT_EQ(result["errors"], Json::object());
  EXPECT_GT(result["ratio_to_limit"], 0);
  expect_nothing_left();
}

TEST_P(ReplayWayTest, FaultsAreOvercomeWithChecksums) {
  const int code = run({"replay", "--trace", trace(12), "--mode", GetParam().mode, "--transport",
                        GetParam().transport, "--fault-seed", "1", "--retries", "20", "--json"});
  ASSERT_EQ(code, 0) << err() << out();
  EXPECT_EQ(json()["wrong_blocks"], 0);
  EXPECT_EQ(json()["lost_requests"], 0);
  EXPECT_GT(json()["errors"].size(), 0U) << out();
  expect_nothing_left();
}

TEST_P(ReplayWayTest, SeveralRanksOnEachSideWorkTogether) {
  const int code = run({"replay", "--trace", trace(16), "--mode", GetParam().mode, "--transport",
                        GetParam().transport, "--prefill-ranks", "2", "--decode-ranks", "2",
                        "--in-flight", "3", "--json"});
  ASSERT_EQ(code, 0) << err() << out();
  EXPECT_EQ(json()["verified_blocks"], json()["blocks"]);
}

INSTANTIATE_TEST_SUITE_P(, ReplayWayTest,
                         ::testing::Values(Way{"read", "shm"}, Way{"read", "cma"},
                                           Way{"read", "unix"}, Way{"read", "tcp"},
                                           Way{"write", "shm"}, Way{"write", "cma"},
                                           Way{"write", "unix"}, Way{"write", "tcp"}),
                         [](const auto& way) {
                           return std::string(way.param.mode) + "_" + way.param.transport;
                         });

TEST_F(ReplayCommandTest, AFlippedBitWithoutChecksumsIsFoundAndFailsTheRun) {
  const int code = run({"replay", "--trace", trace(12), "--fault-seed", "1", "--checksum", "off",
                        "--retries", "20", "--json"});
  EXPECT_EQ(code, 1) << err() << out();
  EXPECT_GT(json()["wrong_blocks"], 0);
  EXPECT_EQ(json()["ok"], false);
}

TEST_F(ReplayCommandTest, ASmallPoolEvictsAndStaysRight) {
  const int code = run({"replay", "--trace", trace(12), "--memory", "7MiB", "--json"});
  ASSERT_EQ(code, 0) << err() << out();
  EXPECT_GT(json()["evicted_blocks"], 0);
  EXPECT_EQ(json()["verified_blocks"], json()["blocks"]);
}

TEST_F(ReplayCommandTest, ALatentCacheMovesToo) {
  const int code =
      run({"replay", "--trace", trace(4), "--model", "deepseek-v3", "--scale", "3/61", "--json"});
  ASSERT_EQ(code, 0) << err() << out();
  EXPECT_EQ(json()["layers"], 3);
  EXPECT_EQ(json()["verified_blocks"], json()["blocks"]);
}

TEST_F(ReplayCommandTest, AKilledRankIsReplacedAndNothingIsLost) {
  for (const char* name : {"prefill-0", "decode-0"}) {
    start({"replay", "--trace", trace(40, 50), "--rate", "1", "--json"});
    wait_for_engines(2);
    ASSERT_EQ(::kill(rank(name), SIGKILL), 0) << name;
    ASSERT_EQ(wait(), 0) << name << err() << out();
    EXPECT_EQ(json()["restarts"], 1);
    EXPECT_EQ(json()["lost_requests"], 0);
    EXPECT_GE(json()["errors"]["peer_lost"], 1);
    expect_nothing_left();
  }
}

TEST_F(ReplayCommandTest, WithoutRetriesAKilledRankFailsTheRunAndNamesIt) {
  start({"replay", "--trace", trace(40, 50), "--rate", "1", "--retries", "0"});
  wait_for_engines(2);
  ASSERT_EQ(::kill(rank("decode-0"), SIGKILL), 0);
  EXPECT_EQ(wait(), 1);
  EXPECT_THAT(out() + err(), HasSubstr("decode rank 0"));
  EXPECT_THAT(out() + err(), HasSubstr("killed by signal 9"));
  expect_nothing_left();
}

TEST_F(ReplayCommandTest, AnInterruptEndsEverythingInOrder) {
  start({"replay", "--trace", trace(40, 500), "--rate", "1"});
  wait_for_engines(2);
  const auto ranks = live_pids();
  ::kill(pid_, SIGINT);
  EXPECT_EQ(wait(), 130);
  for (const pid_t pid : ranks) EXPECT_NE(::kill(pid, 0), 0) << "rank " << pid << " still runs";
  expect_nothing_left();
}

TEST_F(ReplayCommandTest, RanksDoNotOutliveAKilledParent) {
  start({"replay", "--trace", trace(40, 500), "--rate", "1"});
  wait_for_engines(2);
  const auto ranks = live_pids();
  ::kill(pid_, SIGKILL);
  EXPECT_EQ(wait(), -SIGKILL);
  const Deadline deadline = Deadline::in(std::chrono::seconds(20));
  const auto alive = [](pid_t pid) { return ::kill(pid, 0) == 0; };
  while (std::ranges::any_of(ranks, alive) && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(std::ranges::any_of(ranks, alive));
  expect_nothing_left();
}

TEST_F(ReplayCommandTest, ARequestThatDoesNotFitIsRefusedBeforeAnythingStarts) {
  EXPECT_EQ(run({"replay", "--trace", trace(4), "--memory", "64KiB"}), 2);
  EXPECT_THAT(err(), HasSubstr("raise --memory"));
}

TEST_F(ReplayCommandTest, AWrongOptionIsNamedWithItsValueBeforeAnythingStarts) {
  const std::string path = trace(4);
  const std::pair<const char*, const char*> wrong[] = {{"--timeout", "1ns"},
                                                       {"--timeout", "0s"},
                                                       {"--timeout", "-1s"},
                                                       {"--timeout", "9999h"},
                                                       {"--timeout", "soon"},
                                                       {"--ready-timeout", "1ns"},
                                                       {"--ready-timeout", "5"},
                                                       {"--memory", "-1"},
                                                       {"--memory", "0"},
                                                       {"--memory", "much"},
                                                       {"--requests", "-1"},
                                                       {"--retries", "-1"},
                                                       {"--in-flight", "1025"},
                                                       {"--rate", "-1"},
                                                       {"--prefill-ranks", "65"},
                                                       {"--decode-ranks", "0"},
                                                       {"--block-tokens", "3"},
                                                       {"--scale", "2"},
                                                       {"--fault-seed", "-1"},
                                                       {"--fault-seed", "9223372036854775744"},
                                                       {"--fault-seed", "99999999999999999999"}};
  for (const auto& [name, value] : wrong) {
    EXPECT_EQ(run({"replay", "--trace", path, name, value}), 2) << name << " " << value << err();
    EXPECT_THAT(err(), HasSubstr(name));
    EXPECT_THAT(err(), HasSubstr(value));
    EXPECT_EQ(out(), "");
  }
}

TEST_F(ReplayCommandTest, ATraceThatIsAPipeIsRefusedAndNotWaitedFor) {
  const std::string fifo = dir_.path() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(run({"replay", "--trace", fifo}), 2);
  EXPECT_THAT(err(), HasSubstr("not a regular file"));
}

TEST_F(ReplayCommandTest, ARankThatDoesNotStartInTimeIsEndedAndEndsTheRun) {
  // No rank touches its memory within 1 ms; but the parent may be away just then, and find it done.
  int code = 0;
  for (int i = 0; i < 20 && code == 0; ++i) {
    code = run({"replay", "--trace", trace(4), "--memory", "64MiB", "--ready-timeout", "1ms"});
  }
  EXPECT_EQ(code, 1);
  EXPECT_THAT(err(), HasSubstr("was not ready within 1ms (--ready-timeout)"));
  expect_nothing_left();
}

TEST_F(ReplayCommandTest, ABadTraceIsNamedByLineAndField) {
  const std::string path = dir_.write("bad.jsonl", "{\"timestamp\": \"x\"}\n");
  EXPECT_EQ(run({"replay", "--trace", path}), 2);
  EXPECT_THAT(err(), HasSubstr(path + ":1: field timestamp: \"x\""));
}

TEST_F(ReplayCommandTest, APictureIsWritten) {
  const std::string path = dir_.path() + "/run.svg";
  ASSERT_EQ(run({"replay", "--trace", trace(4), "--plot", path}), 0) << err();
  EXPECT_THAT(read_file(path), HasSubstr("</svg>"));
  EXPECT_THAT(out(), HasSubstr("OK: 4 of 4 requests served"));
}

}  // namespace
}  // namespace stagelink::cli::replay
