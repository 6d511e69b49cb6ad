// The halves of a run in two network namespaces: IPv4, IPv6 only, several networks; every byte
// compared, with faults, and with ranks that are killed and stopped.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/deadline.h"
#include "unit/cli/replay/halves/command.h"
#include "unit/cli/replay/halves/namespaces.h"

namespace stagelink::cli::replay {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::Each;
using ::testing::StartsWith;
using Json = nlohmann::json;
using Words = std::vector<std::string>;
using Wires = std::vector<TwoHosts::Wire>;

class TwoHostsTest : public ::testing::Test {
 protected:
  void make_hosts(const Wires& wires) { hosts_.emplace(wires); }
  // The addresses by which the halves find each other, as users write them.
  void start(const std::string& left, const std::string& right, const Words& more,
             uint32_t requests = 8, uint32_t gap_ms = 0) {
    const std::string trace = dir_.write("trace.jsonl", small_trace(requests, gap_ms));
    const auto begin = [&](std::optional<Command>& half, const char* role, const std::string& host,
                           const std::string& bind, const std::string& peer) {
      const std::string runtime = dir_.path() + "/" + role;
      fs::create_directory(runtime);
      fs::permissions(runtime, fs::perms::owner_all);
      Words all = {"replay", "--trace", trace, "--role", role,          "--bind",
                   bind,     "--peer",  peer,  "--json", "--transport", "tcp"};
      all.insert(all.end(), more.begin(), more.end());
      half.emplace(Command::Place{runtime, host}, all);
    };
    begin(prefill_, "prefill", hosts_->left(), left + ":7411", right + ":0");
    begin(decode_, "decode", hosts_->right(), right + ":0", left + ":7411");
  }
  void expect_both_well() {
    EXPECT_EQ(decode_->wait(), 0) << decode_->err() << decode_->out();
    EXPECT_EQ(prefill_->wait(), 0) << prefill_->err() << prefill_->out();
    const Json result = Json::parse(decode_->out());
    EXPECT_GT(result["blocks"], 0);
    EXPECT_EQ(result["wrong_blocks"], 0);
    EXPECT_EQ(result["lost_requests"], 0);
  }

  TempDir dir_;
  std::optional<TwoHosts> hosts_;
  std::optional<Command> prefill_;
  std::optional<Command> decode_;
};

#define SL_NEEDS_HOSTS(wires) \
  make_hosts(wires);          \
  if (!hosts_->exist()) GTEST_SKIP() << hosts_->why_not()

const Wires kFour = {{"10.77.0.1/24", "10.77.0.2/24"}};
const Wires kSix = {{"fd77::1/64", "fd77::2/64"}};

TEST_F(TwoHostsTest, ReadsOverIpv4) {
  SL_NEEDS_HOSTS(kFour);
  start("10.77.0.1", "10.77.0.2", {"--mode", "read"});
  expect_both_well();
}

TEST_F(TwoHostsTest, WritesOverIpv4UnderFaults) {
  SL_NEEDS_HOSTS(kFour);
  start("10.77.0.1", "10.77.0.2", {"--mode", "write", "--fault-seed", "3", "--retries", "20"});
  expect_both_well();
}

TEST_F(TwoHostsTest, HostsWithoutAnyIpv4AddressAreNoSpecialCase) {
  SL_NEEDS_HOSTS(kSix);
  start("[fd77::1]", "[fd77::2]", {"--mode", "read", "--fault-seed", "2", "--retries", "20"});
  expect_both_well();
}

TEST_F(TwoHostsTest, WritesOverIpv6) {
  SL_NEEDS_HOSTS(kSix);
  start("[fd77::1]", "[fd77::2]", {"--mode", "write"});
  expect_both_well();
}

TEST_F(TwoHostsTest, OnlyTheNetworkThatWasAskedForIsUsed) {
  SL_NEEDS_HOSTS((Wires{{"10.77.0.1/24", "10.77.0.2/24"}, {"10.78.0.1/24", "10.78.0.2/24"}}));
  start("10.78.0.1", "10.78.0.2", {}, 20, 50);
  std::vector<std::string> seen;
  const Deadline deadline = Deadline::in(std::chrono::seconds(60));
  // Three connections at once: the halves', and control and data of the engines.
  const auto network = [](const std::string& pid) {
    std::error_code gone;
    return fs::read_symlink("/proc/" + pid + "/ns/net", gone);
  };
  while (seen.size() < 6 && !deadline.passed()) {
    // Not before it has entered its namespace.
    if (network(std::to_string(decode_->pid())) != network("self")) {
      seen = connected_addresses(decode_->pid());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_GE(seen.size(), 6U);
  EXPECT_THAT(seen, Each(StartsWith("10.78.0.")));
  expect_both_well();
}

TEST_F(TwoHostsTest, KilledAndStoppedRanksAreReplaced) {
  SL_NEEDS_HOSTS(kSix);
  start("[fd77::1]", "[fd77::2]", {"--rate", "1", "--timeout", "1s"}, 30, 200);
  const Deadline deadline = Deadline::in(std::chrono::seconds(60));
  const auto rank_once_ready = [&](const Command& half, const char* folder, const char* name) {
    const auto engines = [&] {
      size_t count = 0;
      std::error_code gone;
      for (const auto& entry : fs::directory_iterator(dir_.path() + "/" + folder, gone)) {
        if (entry.path().extension() == ".stat") ++count;
      }
      return count;
    };
    while (engines() == 0 && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return descendant(half.pid(), name);
  };
  const pid_t prefill = rank_once_ready(*prefill_, "prefill", "prefill-0");
  const pid_t decode = rank_once_ready(*decode_, "decode", "decode-0");
  ASSERT_GT(prefill, 0);
  ASSERT_GT(decode, 0);
  ASSERT_EQ(::kill(prefill, SIGKILL), 0);
  // A stop and a start again, within what a run forgives.
  ASSERT_EQ(::kill(decode, SIGSTOP), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // The time that it is stopped.
  ASSERT_EQ(::kill(decode, SIGCONT), 0);
  expect_both_well();
  EXPECT_EQ(Json::parse(decode_->out())["restarts"], 1);
}

}  // namespace
}  // namespace stagelink::cli::replay
