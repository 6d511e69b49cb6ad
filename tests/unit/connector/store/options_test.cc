#include "connector/store/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "connector/omni_config/typed_value.h"

namespace stagelink::store_connector {
namespace {

using testing::HasSubstr;

Result<ConnectorOptions> load(std::string_view text,
                              config::ConfigSyntax syntax = config::ConfigSyntax::kYaml) {
  auto extra = config::parse_config(text, syntax, "x");
  if (!extra.ok()) return extra.status();
  return load_connector_options(*extra);
}

TEST(ConnectorOptionsTest, WithoutAHostTheStoreIsOfThisHostUnderADigestOfTheOptions) {
  auto options = load("{codec_chunk_frames: 25, role: sender}");
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->store.backend, StoreBackend::kShm);
  EXPECT_EQ(options->store.arena.name, options->name_space);
  EXPECT_EQ(options->name_space.rfind("omni-", 0), 0U);
  EXPECT_EQ(load("{codec_chunk_frames: 25, role: receiver, stage_id: 3}")->name_space,
            options->name_space);
  EXPECT_NE(load("{codec_chunk_frames: 26}")->name_space, options->name_space);
}

TEST(ConnectorOptionsTest, AHostMeansTheDatasystemUnlessTheBackendIsNamed) {
  auto options = load("{host: 127.0.0.1, port: \"31501\", get_sub_timeout_ms: 1000}");
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->store.backend, StoreBackend::kYuanrong);
  EXPECT_EQ(options->store.yuanrong.port, 31501);
  EXPECT_EQ(options->get_wait(), std::chrono::seconds(1));
  EXPECT_EQ(load("{host: h, backend: shm}")->store.backend, StoreBackend::kShm);
  EXPECT_EQ(load("{backend: yuanrong}")->store.yuanrong.port, 35001);
}

TEST(ConnectorOptionsTest, AGetLooksOnceOrWaitsAsItIsTold) {
  EXPECT_EQ(load("{}")->get_wait(), Duration::zero());
  EXPECT_EQ(load("{get_sub_timeout_ms: 7}")->get_wait(), std::chrono::milliseconds(7));
  EXPECT_EQ(load("{get_sub_timeout_ms: 0}")->get_wait(), std::chrono::seconds(600));
  EXPECT_EQ(load("{get_sub_timeout_ms: 0, max_wait: 3s}")->get_wait(), std::chrono::seconds(3));
}

TEST(ConnectorOptionsTest, OptionsOfTheStoreStandBesideThoseOfTheConnector) {
  auto options = load(
      "{namespace: mine, capacity: 64MiB, ttl: 5s, eviction: evict, wire: compat, "
      "delete_consumed: no, window_size: 4, max_inflight: 2, stage_id: 1}");
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->store.arena.name, "mine");
  EXPECT_EQ(options->store.arena.capacity, 64U << 20);
  EXPECT_EQ(options->store.ttl, std::chrono::seconds(5));
  EXPECT_EQ(options->store.eviction, EvictionMode::kEvict);
  EXPECT_EQ(options->wire, "compat");
  EXPECT_FALSE(options->delete_consumed);
  EXPECT_EQ(options->window_size, 4);
  EXPECT_EQ(options->stage_id, 1);
  EXPECT_EQ(load("{}")->store.ttl, std::chrono::minutes(20));
}

TEST(ConnectorOptionsTest, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> kCases[] = {
      {"{get_sub_timeout: 5}", "did you mean `get_sub_timeout_ms`?"},
      {"{capactiy: 1GiB}", "did you mean `capacity`?"},
      {"{get_sub_timeout_ms: -2}", "get_sub_timeout_ms"},
      {"{get_sub_timeout_ms: 5s}", "get_sub_timeout_ms"},
      {"{max_wait: 5}", "max_wait"},
      {"{capacity: 1e9}", "capacity"},
      {"{capacity: ~}", "no value"},
      {"{capacity: [1]}", "a list or a map"},
      {"{wire: json}", "`compat` or `fast`"},
      {"{namespace: a/b}", "letters, digits"},
      {"{window_size: 0}", "0 would let nothing through"},
      {"{max_inflight: 0}", "0 would let nothing through"},
      {"{delete_consumed: 1}", "delete_consumed"},
      {"{backend: redis}", "backend"},
      {"{port: 65536}", "port"},
      {"{host: $STAGELINK_TEST_NOWHERE}", "STAGELINK_TEST_NOWHERE is not set"},
  };
  for (const auto& [text, message] : kCases) {
    auto options = load(text);
    ASSERT_FALSE(options.ok()) << text;
    EXPECT_EQ(options.status().code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(std::string(options.status().message()), HasSubstr(message)) << text;
  }
}

TEST(ConnectorOptionsTest, JsonAndVariablesGiveTheSame) {
  auto options = load(R"({"port": 5, "keep": true, "ttl": "1s", "capacity": 1048576, "x": 1.5})",
                      config::ConfigSyntax::kJson);
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->store.yuanrong.port, 5);
  EXPECT_TRUE(options->store.arena.keep);
  EXPECT_EQ(options->store.arena.capacity, 1U << 20);
  EXPECT_FALSE(load(R"({"port": 5.5})", config::ConfigSyntax::kJson).ok());
  ::setenv("STAGELINK_TEST_HOST", "h7", 1);
  EXPECT_EQ(load("{host: \"${STAGELINK_TEST_HOST}\"}")->store.yuanrong.host, "h7");
  ::unsetenv("STAGELINK_TEST_HOST");
}

TEST(ConnectorOptionsTest, APlaceStandsBeforeTheMessage) {
  auto extra = config::parse_config("port: x\n", config::ConfigSyntax::kYaml, "p.yaml");
  ASSERT_TRUE(extra.ok());
  const auto place = [](const config::ConfigNode& node) {
    return "p.yaml:" + std::to_string(node.line);
  };
  EXPECT_THAT(std::string(load_connector_options(*extra, place).status().message()),
              HasSubstr("p.yaml:1: port"));
  auto later = config::parse_config("port: 5\nwindow_size: 0\n", config::ConfigSyntax::kYaml, "");
  ASSERT_TRUE(later.ok());
  EXPECT_THAT(std::string(load_connector_options(*later, place).status().message()),
              HasSubstr("p.yaml:2: window_size: 0 would"));
}

}  // namespace
}  // namespace stagelink::store_connector
