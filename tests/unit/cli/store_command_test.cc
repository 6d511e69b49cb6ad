#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "stagelink/object_store.h"
#include "unit/cli/run_command.h"

namespace stagelink::cli {
namespace {

class StoreCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/dev/shm/sl-storecli-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    options_.arena.directory = name;
    options_.arena.name = "cli";
    options_.arena.capacity = 1 << 20;
    options_.arena.max_objects = 32;
    store_ = *ObjectStore::open(options_);
  }
  void TearDown() override {
    store_.reset();
    EXPECT_TRUE(std::filesystem::is_empty(options_.arena.directory));
    std::filesystem::remove_all(options_.arena.directory);
  }
  void put(std::string_view key, std::string_view bytes) {
    EXPECT_TRUE(store_->put(key, std::as_bytes(std::span(bytes))).ok());
  }
  CommandOutcome run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "store");
    arguments.insert(arguments.end(),
                     {"--name", "cli", "--option", "directory=" + options_.arena.directory});
    return run_command(std::move(arguments));
  }

  StoreOptions options_;
  std::unique_ptr<ObjectStore> store_;
};

TEST_F(StoreCommandTest, StatAndLsShowWhatIsThere) {
  put("plain", "12345");
  put("\xff\n", "1");
  const auto view = store_->get("plain");
  const auto writer = store_->create("begun", 10);
  const auto stat = run({"stat", "--json"});
  EXPECT_EQ(stat.exit_code, kExitOk) << stat.err;
  const auto figures = nlohmann::json::parse(stat.out);
  EXPECT_EQ(figures["objects"], 2);
  EXPECT_EQ(figures["leased"], 1);
  EXPECT_EQ(figures["capacity_bytes"], 1 << 20);
  EXPECT_EQ(figures["pids"], std::vector<int>{::getpid()});
  const auto rows = nlohmann::json::parse(run({"ls", "--json"}).out);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0]["key"], "plain");
  EXPECT_EQ(rows[0]["bytes"], 5);
  EXPECT_EQ(rows[0]["viewers"], 1);
  EXPECT_EQ(rows[1].count("key"), 0U);
  EXPECT_EQ(rows[1]["key_hex"], "ff0a");
  EXPECT_EQ(rows[2]["state"], "writing");
  EXPECT_EQ(rows[2]["writer_pid"], ::getpid());
  EXPECT_NE(run({"ls"}).out.find("\\xff\\n"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(run({"ls", "pl", "--json"}).out).size(), 1U);
  EXPECT_NE(run({"stat"}).out.find("2 of 32, 1 under a view"), std::string::npos);
}

TEST_F(StoreCommandTest, GetWritesTheBytesAndLeavesThemThere) {
  put("key", "some bytes");
  EXPECT_EQ(run({"get", "key"}).out, "some bytes");
  EXPECT_EQ(run({"get", "--hex", "6b6579"}).out, "some bytes");
  const auto missing = run({"get", "none"});
  EXPECT_EQ(missing.exit_code, kExitFailed);
  EXPECT_NE(missing.err.find("not_found"), std::string::npos);
  EXPECT_EQ(run({"get", "--hex", "6b6"}).exit_code, kExitUsage);
  EXPECT_EQ(run({"get", "key", "--timeout", "5"}).exit_code, kExitUsage);
  EXPECT_EQ(nlohmann::json::parse(run({"get", "key", "--json"}).out)["bytes"], 10);
}

TEST_F(StoreCommandTest, RmAndClearErase) {
  put("a", "1");
  put("b", "1");
  put("c", "1");
  EXPECT_EQ(run({"rm", "a"}).exit_code, kExitOk);
  EXPECT_EQ(run({"rm", "a"}).exit_code, kExitFailed);
  EXPECT_EQ(run({"clear", "--json"}).out, "{\"erased\":2}\n");
  EXPECT_EQ(store_->usage()->objects, 0U);
}

TEST_F(StoreCommandTest, WithoutAnArenaNothingIsMade) {
  ASSERT_TRUE(store_->close().ok());
  for (const char* command : {"stat", "ls", "clear"}) {
    const auto outcome = run({command});
    EXPECT_EQ(outcome.exit_code, kExitFailed) << command;
    EXPECT_NE(outcome.err.find("there is none"), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(run({"stat", "--option", "capacty=1"}).exit_code, kExitUsage);
}

TEST_F(StoreCommandTest, BenchMeasuresEachSize) {
  const auto outcome = run({"bench", "--sizes", "1KiB,64KiB", "--count", "3", "--json", "--option",
                            "capacity=1MiB", "--option", "max_objects=32"});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  const auto rows = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1]["bytes"], 64 << 10);
  EXPECT_GT(rows[1]["put_us"], 0.0);
}

}  // namespace
}  // namespace stagelink::cli
