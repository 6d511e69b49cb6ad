#include "connector/moriio/options.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "config/option_loader.h"

namespace stagelink::moriio {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const char* no_variable(const char*) { return nullptr; }

Result<LoadedOptions> load(const GivenOptions& given) {
  return load_moriio_options(given, no_variable);
}

bool names(const Status& status, std::string_view text) {
  return status.message().find(text) != std::string_view::npos;
}

TEST(MoriioOptionsTest, DefaultsAreThoseOfVllm) {
  const auto loaded = load({});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const MoriioOptions& options = (*loaded).options;
  EXPECT_EQ(options.handshake_port, 6301U);
  EXPECT_EQ(options.notify_port, 61005U);
  EXPECT_FALSE(options.read_mode);
  EXPECT_EQ(options.transfer_timeout, seconds(30));
  EXPECT_EQ(options.defer_timeout, seconds(60));
  EXPECT_EQ(options.recv_abort_timeout, seconds(120));
  EXPECT_EQ(options.post_batch_size, -1);
  EXPECT_EQ(options.backend, "auto");
  EXPECT_TRUE((*loaded).notes.empty());
}

TEST(MoriioOptionsTest, EveryDefaultIsWithinItsRange) {
  const MoriioOptions defaults;
  for (const auto& row : moriio_option_table().rows) {
    EXPECT_TRUE(config::check_value(row, &defaults).ok()) << row.name;
  }
}

TEST(MoriioOptionsTest, ValuesComeAsNumbersOrTexts) {
  const auto loaded = load({{"handshake_port", std::string("7000")},
                            {"notify_port", int64_t{8000}},
                            {"http_port", 9000.0},
                            {"transfer_timeout", 0.5},
                            {"defer_timeout", int64_t{7}},
                            {"recv_abort_timeout", std::string(" 1.5 ")},
                            {"handshake_timeout", std::string("250ms")},
                            {"backend", std::string(" SHM ")}});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const MoriioOptions& options = (*loaded).options;
  EXPECT_EQ(options.handshake_port, 7000U);
  EXPECT_EQ(options.notify_port, 8000U);
  EXPECT_EQ(options.http_port, 9000U);
  EXPECT_EQ(options.transfer_timeout, milliseconds(500));
  EXPECT_EQ(options.defer_timeout, seconds(7));
  EXPECT_EQ(options.recv_abort_timeout, milliseconds(1500));
  EXPECT_EQ(options.handshake_timeout, milliseconds(250));
  EXPECT_EQ(options.backend, "shm");
}

TEST(MoriioOptionsTest, BooleansAreTrueOneOrABoolean) {
  for (const GivenValue& value :
       {GivenValue(true), GivenValue(std::string("true")), GivenValue(std::string(" TRUE ")),
        GivenValue(std::string("1")), GivenValue(int64_t{1})}) {
    EXPECT_TRUE((*load({{"read_mode", value}})).options.read_mode);
  }
  for (const GivenValue& value : {GivenValue(false), GivenValue(std::string("False")),
                                  GivenValue(std::string("0")), GivenValue(int64_t{0})}) {
    EXPECT_FALSE((*load({{"async_load", value}})).options.async_load);
  }
  for (const GivenValue& value :
       {GivenValue(std::string("flase")), GivenValue(int64_t{2}), GivenValue(std::string())}) {
    EXPECT_TRUE(names(load({{"read_mode", value}}).status(), ".read_mode: "));
  }
}

TEST(MoriioOptionsTest, ATimeoutIsFiniteAndAboveZero) {
  using Limits = std::numeric_limits<double>;
  for (const std::string key :
       {"transfer_timeout", "defer_timeout", "recv_abort_timeout", "handshake_timeout"}) {
    for (const GivenValue& value :
         {GivenValue(0.0), GivenValue(-1.0), GivenValue(Limits::infinity()),
          GivenValue(Limits::quiet_NaN()), GivenValue(int64_t{0}), GivenValue(true),
          GivenValue(std::string("0")), GivenValue(std::string("nan")),
          GivenValue(std::string("inf")), GivenValue(std::string("soon")), GivenValue(1e300),
          GivenValue(0.0009)}) {
      const auto status = load({{key, value}}).status();
      EXPECT_EQ(status.reason(), Reason::kInvalidArgument);
      EXPECT_TRUE(names(status, "kv_connector_extra_config." + key)) << status.to_string();
    }
    EXPECT_TRUE(load({{key, 0.001}}).ok());
  }
}

TEST(MoriioOptionsTest, APortHasBothBounds) {
  for (const std::string key : {"handshake_port", "notify_port"}) {
    EXPECT_TRUE(load({{key, int64_t{1}}}).ok());
    EXPECT_TRUE(load({{key, int64_t{65535}}}).ok());
    for (const GivenValue& value :
         {GivenValue(int64_t{0}), GivenValue(int64_t{65536}), GivenValue(int64_t{-1}),
          GivenValue(std::string("abc")), GivenValue(8000.5), GivenValue(true)}) {
      EXPECT_TRUE(names(load({{key, value}}).status(), "." + key + ": "));
    }
  }
  EXPECT_TRUE(names(load({{"handshake_port", int64_t{61005}}}).status(), "notify_port"));
}

TEST(MoriioOptionsTest, AProxyNeedsItsPortAndOurs) {
  const std::pair<std::string, GivenValue> proxy = {"proxy_ip", std::string("10.0.0.9")};
  EXPECT_TRUE(names(load({proxy}).status(), "http_port"));
  EXPECT_TRUE(
      names(load({proxy, {"http_port", int64_t{8000}}}).status(), "proxy_ping_port: it is needed"));
  EXPECT_TRUE(
      load({proxy, {"http_port", int64_t{8000}}, {"proxy_ping_port", int64_t{36367}}}).ok());
}

TEST(MoriioOptionsTest, BackendsOfOthersAreRefusedByNameOrReplacedWithANote) {
  EXPECT_TRUE(names(load({{"backend", std::string("xgmi")}}).status(), "xgmi"));
  EXPECT_TRUE(names(load({{"backend", std::string("ucx")}}).status(), "none of auto, shm"));
  const auto loaded = load({{"backend", std::string("rdma")}});
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ((*loaded).options.backend, "auto");
  ASSERT_EQ((*loaded).notes.size(), 1U);
  EXPECT_NE((*loaded).notes[0].find("rdma"), std::string::npos);
}

TEST(MoriioOptionsTest, AnUnknownKeyIsRefusedWithTheNearestName) {
  const auto status = load({{"transfer_timout", int64_t{1}}}).status();
  EXPECT_EQ(status.reason(), Reason::kUnknownKey);
  EXPECT_TRUE(names(status, "did you mean `transfer_timeout`")) << status.to_string();
  EXPECT_TRUE(load({{"self_describing_kv_events", true}}).ok());  // The host's own.
  EXPECT_TRUE(names(load({{"read_mode", true}, {"read_mode", false}}).status(), "given twice"));
}

TEST(MoriioOptionsTest, OldVariablesCountWhereTheKeyIsAbsent) {
  static const std::map<std::string, const char*> kVariables = {
      {"VLLM_MORIIO_CONNECTOR_READ_MODE", "1"},
      {"VLLM_MORIIO_QP_PER_TRANSFER", "4"},
      {"VLLM_MORIIO_POST_BATCH_SIZE", "8"},
      {"VLLM_MORIIO_NUM_WORKERS", ""},  // Empty counts as not set.
      {"VLLM_MORIIO_TRANSFER_TIMEOUT_S", "90"}};
  const auto variable = [](const char* name) {
    const auto found = kVariables.find(name);
    return found == kVariables.end() ? nullptr : found->second;
  };
  const auto loaded = load_moriio_options({{"qp_per_transfer", int64_t{2}}}, variable);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_TRUE((*loaded).options.read_mode);
  EXPECT_EQ((*loaded).options.qp_per_transfer, 2U);
  EXPECT_EQ((*loaded).options.post_batch_size, 8);
  EXPECT_EQ((*loaded).options.num_workers, 1U);
  EXPECT_EQ((*loaded).options.recv_abort_timeout, seconds(90));
  ASSERT_EQ((*loaded).notes.size(), 3U);
  EXPECT_NE((*loaded).notes[0].find("`read_mode`"), std::string::npos);

  const auto wrong = load_moriio_options(
      {}, [](const char* name) { return std::string(name).ends_with("WORKERS") ? "x" : nullptr; });
  EXPECT_TRUE(names(wrong.status(), "VLLM_MORIIO_NUM_WORKERS: num_workers"));
}

// The tables of the page stand between two marks; STAGELINK_WRITE_GOLDEN=1 writes them anew.
TEST(MoriioOptionsTest, ThePageHasTheTablesOfTheOptions) {
  const std::string path = std::string(STAGELINK_SOURCE_DIR) + "/docs/connectors/moriio.md";
  std::ifstream file(path);
  std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string begin = "<!-- options: begin -->\n";
  const std::string end = "<!-- options: end -->";
  const size_t from = page.find(begin);
  const size_t to = page.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  const size_t at = from + begin.size();
  if (std::getenv("STAGELINK_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path) << page.substr(0, at) << moriio_options_text() << page.substr(to);
    return;
  }
  EXPECT_EQ(page.substr(at, to - at), moriio_options_text())
      << "write it anew: STAGELINK_WRITE_GOLDEN=1";
}

}  // namespace
}  // namespace stagelink::moriio
