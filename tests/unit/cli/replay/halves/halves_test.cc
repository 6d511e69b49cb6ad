// A run whose halves are two commands: they meet, agree, move every byte, report on both sides, and
// neither hangs when the other is late, different, killed or stopped.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>

#include "base/deadline.h"
#include "base/runtime_dir.h"
#include "base/unique_fd.h"
#include "unit/cli/replay/halves/command.h"

namespace stagelink::cli::replay {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

class HalvesTest : public ::testing::Test {
 protected:
  HalvesTest() : port_(free_port()), trace_(dir_.write("trace.jsonl", small_trace(12))) {
    fs::create_directory(runtime());
    fs::permissions(runtime(), fs::perms::owner_all);
  }
  void TearDown() override {
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator(runtime(), gone)) {
      ADD_FAILURE() << "left behind: " << entry.path();
    }
  }
  std::string runtime() const { return dir_.path() + "/run"; }
  // What the ranks of a killed half leave goes when the next engine starts, once they have ended.
  void reclaim_as_the_next_engine_does() const {
    const Deadline deadline = Deadline::in(std::chrono::seconds(60));
    std::error_code gone;
    while (fs::directory_iterator(runtime(), gone) != fs::directory_iterator()) {
      if (deadline.passed()) return;
      if (reclaim_dead_entries(runtime()) > 0) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  void slow_trace() { trace_ = dir_.write("trace.jsonl", small_trace(40, 100)); }

  Words words(const std::string& role, const Words& more) const {
    const std::string prefill = "127.0.0.1:" + std::to_string(port_);
    Words all = {"replay",
                 "--trace",
                 trace_,
                 "--role",
                 role,
                 "--bind",
                 role == "prefill" ? prefill : "127.0.0.1:0",
                 "--peer",
                 role == "prefill" ? "127.0.0.1:0" : prefill,
                 "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void start_prefill(const Words& more) {
    prefill_.emplace(Command::Place{runtime(), ""}, words("prefill", more));
  }
  void start_decode(const Words& more) {
    decode_.emplace(Command::Place{runtime(), ""}, words("decode", more));
  }
  void start(const Words& more) {
    start_prefill(more);
    start_decode(more);
  }
  std::string said() const {
    return (decode_ ? decode_->err() + decode_->out() : "") +
           (prefill_ ? prefill_->err() + prefill_->out() : "");
  }
  // Engines that are complete: the socket of an engine comes last.
  size_t live_engines() const {
    std::error_code gone;
    size_t sockets = 0;
    for (const auto& entry : fs::directory_iterator(runtime(), gone)) {
      if (entry.path().extension() == ".sock") ++sockets;
    }
    return sockets;
  }
  // A rank's process, once it runs.
  pid_t rank(const Command& half, const std::string& name) const {
    const Deadline deadline = Deadline::in(std::chrono::seconds(60));
    for (;;) {
      const pid_t pid = descendant(half.pid(), name);
      if (pid > 0 || deadline.passed()) return pid;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  TempDir dir_;
  uint16_t port_;
  std::string trace_;
  std::optional<Command> prefill_;
  std::optional<Command> decode_;
};

// Listens there until the first connection, and leaves no trace of itself.
bool somebody_came_to(uint16_t port) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int one = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), 8) != 0) {
    return false;
  }
  pollfd guest{listener.get(), POLLIN, 0};
  return ::poll(&guest, 1, 60'000) == 1;
}

struct Way {
  const char* mode;
  const char* transport;
};
class HalvesWayTest : public HalvesTest, public ::testing::WithParamInterface<Way> {};

TEST_P(HalvesWayTest, BothReportTheSameVerifiedRun) {
  start({"--mode", GetParam().mode, "--transport", GetParam().transport});
  ASSERT_EQ(decode_->wait(), 0) << said();
  ASSERT_EQ(prefill_->wait(), 0) << said();
  Json ours = Json::parse(decode_->out());
  Json theirs = Json::parse(prefill_->out());
  EXPECT_EQ(ours["role"], "decode");
  EXPECT_EQ(theirs["role"], "prefill");
  EXPECT_EQ(ours["requests"], 12);
  EXPECT_GT(ours["blocks"], 0);
  EXPECT_EQ(ours["verified_blocks"], ours["blocks"]);
  ours.erase("role");
  theirs.erase("role");
  EXPECT_EQ(ours, theirs);
}

TEST_P(HalvesWayTest, FaultsAreOvercome) {
  start({"--mode", GetParam().mode, "--transport", GetParam().transport, "--fault-seed", "1",
         "--retries", "20"});
  ASSERT_EQ(decode_->wait(), 0) << said();
  ASSERT_EQ(prefill_->wait(), 0) << said();
  EXPECT_EQ(Json::parse(decode_->out())["wrong_blocks"], 0);
  EXPECT_GT(Json::parse(prefill_->out())["errors"].size(), 0U);
}

INSTANTIATE_TEST_SUITE_P(, HalvesWayTest,
                         ::testing::Values(Way{"read", "unix"}, Way{"write", "unix"},
                                           Way{"read", "tcp"}, Way{"write", "tcp"}),
                         [](const auto& way) {
                           return std::string(way.param.mode) + "_" + way.param.transport;
                         });

TEST_F(HalvesTest, TheDecodeHalfMayComeFirst) {
  start_decode({});
  ASSERT_TRUE(somebody_came_to(port_));
  start_prefill({});
  EXPECT_EQ(decode_->wait(), 0) << said();
  EXPECT_EQ(prefill_->wait(), 0) << said();
}

TEST_F(HalvesTest, AHalfThatNeverComesIsATimeoutThatNamesIt) {
  start_prefill({"--start-timeout", "300ms"});
  EXPECT_EQ(prefill_->wait(), 1);
  EXPECT_THAT(prefill_->err(), HasSubstr("the decode half did not come to 127.0.0.1:" +
                                         std::to_string(port_) + " within 0.3 s"));
  start_decode({"--start-timeout", "300ms"});
  EXPECT_EQ(decode_->wait(), 1);
  EXPECT_THAT(decode_->err(), HasSubstr("the prefill half did not answer at 127.0.0.1:" +
                                        std::to_string(port_) + " within 0.3 s"));
  EXPECT_THAT(decode_->err(), HasSubstr("refused"));
}

TEST_F(HalvesTest, DifferentOptionsAreNamedWithBothValues) {
  start_prefill({"--start-timeout", "20s", "--block-tokens", "32"});
  start_decode({"--start-timeout", "20s"});
  EXPECT_EQ(decode_->wait(), 1);
  EXPECT_THAT(decode_->err(), HasSubstr("block tokens: 32 here, 16 there"));
  ::kill(prefill_->pid(), SIGINT);
  EXPECT_EQ(prefill_->wait(), 130);
  EXPECT_THAT(prefill_->err(), HasSubstr("block tokens: 32 here, 16 there"));
}

TEST_F(HalvesTest, GarbageAndSilenceAtThePortDisturbNobody) {
  start_prefill({});
  const Deadline deadline = Deadline::in(std::chrono::seconds(30));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const UniqueFd garbage(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  while (::connect(garbage.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
         0) {
    ASSERT_FALSE(deadline.passed());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::string deep = std::string(60000, '[') + "\n";
  ASSERT_GT(::send(garbage.get(), deep.data(), deep.size(), MSG_NOSIGNAL), 0);
  start_decode({});
  EXPECT_EQ(decode_->wait(), 0) << said();
  EXPECT_EQ(prefill_->wait(), 0) << said();
  EXPECT_THAT(prefill_->err(), HasSubstr("refused a guest from 127.0.0.1"));
}

TEST_F(HalvesTest, AGuestFromElsewhereIsRefused) {
  prefill_.emplace(Command::Place{runtime(), ""},
                   Words{"replay", "--trace", trace_, "--role", "prefill", "--bind",
                         "127.0.0.1:" + std::to_string(port_), "--peer", "127.0.0.2:0",
                         "--start-timeout", "60s"});
  start_decode({"--start-timeout", "1500ms"});
  EXPECT_EQ(decode_->wait(), 1);
  ::kill(prefill_->pid(), SIGINT);
  EXPECT_EQ(prefill_->wait(), 130);
  EXPECT_THAT(prefill_->err(), HasSubstr("a guest from 127.0.0.1 is not --peer 127.0.0.2"));
}

TEST_F(HalvesTest, OnlyAHalfWithTheSecretIsAdmitted) {
  const auto secret = [this](const char* name, char byte) {
    const std::string path = dir_.write(name, std::string(64, byte));
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    return path;
  };
  start_prefill({"--secret-file", secret("ours", 'a'), "--start-timeout", "60s"});
  start_decode({"--secret-file", secret("other", 'b')});
  EXPECT_EQ(decode_->wait(), 1);
  EXPECT_THAT(decode_->err(), HasSubstr("secret"));
  start_decode({});
  EXPECT_EQ(decode_->wait(), 1);
  EXPECT_THAT(decode_->err(), HasSubstr("secret"));
  start_decode({"--secret-file", dir_.path() + "/ours"});
  EXPECT_EQ(decode_->wait(), 0) << said();
  EXPECT_EQ(prefill_->wait(), 0) << said();
}

TEST_F(HalvesTest, AKilledHalfEndsTheOtherWithItsName) {
  slow_trace();
  start({"--rate", "1"});
  ASSERT_GT(rank(*decode_, "decode-0"), 0);
  ASSERT_GT(rank(*prefill_, "prefill-0"), 0);
  ::kill(prefill_->pid(), SIGKILL);
  EXPECT_EQ(prefill_->wait(), -SIGKILL);
  EXPECT_EQ(decode_->wait(), 1);
  EXPECT_THAT(said(), HasSubstr("the prefill half at 127.0.0.1:" + std::to_string(port_)));
  reclaim_as_the_next_engine_does();
}

TEST_F(HalvesTest, AKilledDecodeHalfEndsThePrefillHalf) {
  slow_trace();
  start({"--rate", "1"});
  ASSERT_GT(rank(*prefill_, "prefill-0"), 0);
  ::kill(decode_->pid(), SIGKILL);
  EXPECT_EQ(decode_->wait(), -SIGKILL);
  EXPECT_EQ(prefill_->wait(), 1);
  EXPECT_THAT(prefill_->err(), HasSubstr("the decode half at 127.0.0.1 has gone"));
  reclaim_as_the_next_engine_does();
}

// It is silent, and its connection stays: given up after 20 s, and told so when it goes on.
TEST_F(HalvesTest, AStoppedHalfEndsTheOtherAndItselfOnceItGoesOn) {
  trace_ = dir_.write("trace.jsonl", small_trace(200, 300));  // A minute, if nothing happened.
  start({"--rate", "1"});
  ASSERT_GT(rank(*decode_, "decode-0"), 0);
  ASSERT_GT(rank(*prefill_, "prefill-0"), 0);
  ASSERT_EQ(::kill(prefill_->pid(), SIGSTOP), 0);
  EXPECT_EQ(decode_->wait(), 1);
  EXPECT_THAT(decode_->err(), HasSubstr("the prefill half at 127.0.0.1:" + std::to_string(port_)));
  EXPECT_THAT(decode_->err(), HasSubstr("silent"));
  ASSERT_EQ(::kill(prefill_->pid(), SIGCONT), 0);
  EXPECT_EQ(prefill_->wait(), 1);
  EXPECT_THAT(prefill_->err(), HasSubstr("the decode half at 127.0.0.1"));
  reclaim_as_the_next_engine_does();
}

TEST_F(HalvesTest, AKilledRankOfEitherHalfIsReplaced) {
  for (const bool of_prefill : {true, false}) {
    slow_trace();
    start({"--rate", "2"});
    const pid_t pid = of_prefill ? rank(*prefill_, "prefill-0") : rank(*decode_, "decode-0");
    ASSERT_GT(pid, 0);
    // Its engine is complete once the other half knows it; a rank killed before that ends the run.
    const Deadline deadline = Deadline::in(std::chrono::seconds(60));
    while (live_engines() < 2 && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    ASSERT_EQ(decode_->wait(), 0) << said();
    ASSERT_EQ(prefill_->wait(), 0) << said();
    EXPECT_EQ(Json::parse(decode_->out())["restarts"], 1);
    EXPECT_EQ(Json::parse(decode_->out())["lost_requests"], 0);
  }
}

TEST_F(HalvesTest, AnInterruptEndsBothWithItsCode) {
  slow_trace();
  start({"--rate", "1"});
  ASSERT_GT(rank(*decode_, "decode-0"), 0);
  ASSERT_GT(rank(*prefill_, "prefill-0"), 0);
  ::kill(decode_->pid(), SIGINT);
  EXPECT_EQ(decode_->wait(), 130) << said();
  EXPECT_EQ(prefill_->wait(), 130) << said();
}

struct BadWords {
  const char* role;
  const char* bind;
  const char* peer;
  const char* message;
};

TEST_F(HalvesTest, AddressesThatCannotWorkAreRefusedByName) {
  for (const BadWords& bad : {BadWords{"decode", "127.0.0.1:0", "0.0.0.0:7000", "--peer"},
                              BadWords{"decode", "127.0.0.1:0", "[::]:7000", "--peer"},
                              BadWords{"decode", "127.0.0.1:0", "*:7000", "--peer"},
                              BadWords{"decode", "127.0.0.1:0", "127.0.0.1:0", "--peer"},
                              BadWords{"decode", "127.0.0.1:0", "::1:7000", "--peer"},
                              BadWords{"prefill", "127.0.0.1:0", "127.0.0.1:0", "--bind"},
                              BadWords{"prefill", "127.0.0.1", "127.0.0.1:0", "--bind"},
                              BadWords{"all", "127.0.0.1:0", "127.0.0.1:7000", "--peer"}}) {
    Command command({runtime(), ""}, {"replay", "--trace", trace_, "--role", bad.role, "--bind",
                                      bad.bind, "--peer", bad.peer});
    EXPECT_EQ(command.wait(), 2) << bad.bind << " " << bad.peer;
    EXPECT_THAT(command.err(), HasSubstr(bad.message)) << bad.bind << " " << bad.peer;
  }
}

}  // namespace
}  // namespace stagelink::cli::replay
