#include "connector/omni_config/transfer_config.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "connector/omni_config/typed_value.h"

namespace stagelink::omni {
namespace {

using testing::HasSubstr;

Result<OmniTransferConfig> parse(std::string_view text) {
  auto tree = parse_config_tree(text, config::ConfigSyntax::kYaml, "p.yaml");
  if (!tree.ok()) return tree.status();
  return parse_transfer_config(*tree);
}

std::string edges_text(const OmniTransferConfig& config) {
  std::string out;
  for (const Edge& edge : config.edges) {
    out += edge.from + "->" + edge.to + " " + edge.connector.name + " " +
           to_json(edge.connector.extra) + " " + std::to_string(edge.bounds.window_size) + " " +
           std::to_string(edge.bounds.max_inflight) + "\n";
  }
  return out;
}

// As the description of YuanrongConnector prints it.
constexpr std::string_view kFormer = R"(runtime:
  connectors:
    connector_of_yuanrong:
      name: YuanrongConnector
      extra:
        host: "127.0.0.1"
        port: 31501
        get_sub_timeout_ms: 1000

stage_args:
  - stage_id: 0
    output_connectors:
      to_stage_1: connector_of_yuanrong

  - stage_id: 1
    input_connectors:
      from_stage_0: connector_of_yuanrong
)";

constexpr std::string_view kNow = R"(pipeline: three
async_chunk: false
connectors:
  store: {name: YuanrongConnector, extra: {backend: shm}}
stages:
  - stage_id: 0
    num_replicas: 1
    output_connectors: {to_stage_1: store}
  - stage_id: 1
    gpu_memory_utilization: 0.5
    input_connectors: {from_stage_0: {name: YuanrongConnector, extra: {backend: "shm"}}}
  - stage_id: 2
    engine_input_source: [1]
edges:
  - {from: 0, to: 1, window_size: 8}
runtime:
  defaults: {window_size: -1, max_inflight: 2}
)";

TEST(TransferConfigTest, TheSchemaOfFormerTimesGivesItsEdge) {
  auto config = parse(kFormer);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(edges_text(*config),
            "0->1 YuanrongConnector "
            R"({"get_sub_timeout_ms":1000,"host":"127.0.0.1","port":31501} -1 -1)"
            "\n");
  EXPECT_EQ(config->edges[0].reference, "connector_of_yuanrong");
}

TEST(TransferConfigTest, TheDeploySchemaGivesItsEdgesWithTheirBounds) {
  auto config = parse(kNow);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(edges_text(*config),
            "0->1 YuanrongConnector {\"backend\":\"shm\"} 8 2\n"
            "1->2 SharedMemoryConnector {} -1 2\n");
  EXPECT_TRUE(config->edges[1].automatic);
}

TEST(TransferConfigTest, ADisabledRuntimeHasNoEdges) {
  auto config = parse(std::string(kNow) + "  enabled: false\n");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_FALSE(config->enabled);
  EXPECT_TRUE(config->edges.empty());
  EXPECT_EQ(config->stages.size(), 3U);
}

struct Refused {
  const char* replace;  // Of kNow; empty: put behind it.
  const char* by;
  const char* message;
};

TEST(TransferConfigTest, WhatIsWrongIsNamedWithItsPlace) {
  const Refused kCases[] = {
      {"async_chunk", "asinc_chunk", "p.yaml:2:1: unknown key `asinc_chunk`"},
      {"async_chunk", "asinc_chunk", "did you mean `async_chunk`?"},
      {"pipeline: three", "tensor: 1", "p.yaml:1:1: unknown key `tensor` of a pipeline"},
      {"window_size: 8", "windowsize: 8", "p.yaml:15:22: unknown key `windowsize` of an edge"},
      {"window_size: 8", "window_size: 0", "0 would let nothing through"},
      {"window_size: 8", "window_size: -2", "expected an integer, -1 to 1000000, found `-2`"},
      {"window_size: 8", "window_size: 1s", "found `1s`"},
      {"to_stage_1: store", "to_stage_1: stor", "Undefined connector reference: stor"},
      {"to_stage_1: store", "to_stage_1: stor", "p.yaml:8:37: Undefined"},
      {"to_stage_1: store", "to_stage_1: stor", "did you mean `store`?"},
      {"to_stage_1: store", "to_stage_7: store", "edge 0->7: there is no stage 7"},
      {"to_stage_1: store", "to_stage_0: store", "edge 0->0 leads to itself"},
      {"to_stage_1: store", "stage_1: store", "a key is `to_stage_` and the id of a stage"},
      {"to_stage_1: store", "to_stage_x: store", "found `to_stage_x`"},
      {"{to_stage_1: store}", "", "the section `output_connectors` is null"},
      {"{to_stage_1: store}", "store", "`output_connectors` must be a map, found a single value"},
      {"extra: {backend: \"shm\"}", "extra: {backend: yuanrong}",
       "edge 0->1: `extra` differs from that of p.yaml:8:25 in the key `backend`"},
      {"extra: {backend: \"shm\"}", "extra: {}", "in the key `backend`"},
      {"{name: YuanrongConnector, extra: {backend: \"shm\"}}", "{name: NixlConnector}",
       "Connector type mismatch for edge 0->1"},
      {"{name: YuanrongConnector, extra: {backend: shm}}", "{name: YuanrongConector}",
       "did you mean `YuanrongConnector`?"},
      {"{name: YuanrongConnector, extra: {backend: shm}}", "{extra: {}}",
       "connector `store` has no `name`"},
      {"extra: {backend: shm}", "backend: shm", "`backend` stands beside `name`"},
      {"extra: {backend: shm}", "extras: {}", "did you mean `extra`?"},
      {"extra: {backend: shm}", "extra: null", "the section `extra` is null"},
      {"stage_id: 2", "stage_id: 1", "p.yaml:12:5: stage 1 is there already (p.yaml:9:5)"},
      {"stage_id: 2", "stage_id: two", "stage_id: expected an integer"},
      {"stage_id: 2", "stage: 2", "without `stage_id`"},
      {"output_connectors: {", "output_connector: {", "did you mean `output_connectors`?"},
      {"engine_input_source: [1]", "engine_input_source: 1", "must be a list"},
      {"engine_input_source: [1]", "engine_input_source: [9]", "there is no stage 9"},
      {"num_replicas: 1", "window_size: 3", "unknown key `window_size` of a stage"},
      {"from: 0, to: 1", "from: 0", "an edge without `to`"},
      {"edges:", "edges:\n  - {from: 0, to: 1}", "edge 0->1 is listed already"},
      {"edges:", "edges: null\ndtype:", "p.yaml:14:1: the section `edges` is null"},
      {"connectors:\n", "connectors:\n  a: null\n", "the section `a` is null"},
      {"", "  enabled: perhaps\n", "runtime.enabled: expected true or false"},
      {"", "  enable: true\n", "did you mean `enabled`?"},
      {"", "  connectors: {}\n", "`connectors` stands under `runtime` and at the top level"},
      {"", "stage_args: []\n", "`stage_args` stands beside `stages` (p.yaml:5:1)"},
      {"", "pipeline: two\n", "duplicate key `pipeline`; the first stands in line 1"},
      {"", "base_config: other.yaml\n", "`base_config` needs a file"},
      {"num_replicas: 1", "num_replicas: many", "num_replicas: expected an integer"},
  };
  for (const Refused& refused : kCases) {
    std::string text(kNow);
    const std::string replaced = refused.replace;
    if (replaced.empty()) {
      text += refused.by;
    } else {
      const size_t at = text.find(replaced);
      ASSERT_NE(at, std::string::npos) << replaced;
      text.replace(at, replaced.size(), refused.by);
    }
    auto config = parse(text);
    ASSERT_FALSE(config.ok()) << refused.message << "\n" << text;
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument) << refused.message;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(refused.message)) << text;
  }
}

TEST(TransferConfigTest, WhatBelongsToTheHostIsLeftAlone) {
  EXPECT_TRUE(parse("stages:\n  - stage_id: 0\n    engine_extras: {a: 1}\n    max_num_seqs: 4\n"
                    "    kv_cache_memory_bytes: null\n    env: {X: '1'}\n")
                  .ok());
  EXPECT_TRUE(parse("").ok());
}

class ConfigFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/omni_" + std::to_string(::getpid());
    std::filesystem::create_directories(dir_ + "/sub");
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(dir_ + "/" + name) << text;
    return dir_ + "/" + name;
  }
  std::string dir_;
};

TEST_F(ConfigFilesTest, AFileInheritsConnectorsByKeyAndStagesById) {
  write("base.yaml", R"(connectors:
  c: {name: YuanrongConnector, extra: {host: a, port: 1}}
stages:
  - {stage_id: 0, output_connectors: {to_stage_1: c}}
  - {stage_id: 1, num_replicas: 4}
platforms:
  npu: {stages: [{stage_id: 1, num_replicas: 2}]}
)");
  const std::string over = write("sub/over.yaml", R"(base_config: ../base.yaml
connectors: {c: {extra: {port: 2}}}
stages: [{stage_id: 1, input_connectors: {from_stage_0: c}}]
platforms:
  npu: {stages: [{stage_id: 0, num_replicas: 3}]}
)");
  auto config = load_omni_transfer_config(over);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(edges_text(*config), "0->1 YuanrongConnector {\"host\":\"a\",\"port\":2} -1 -1\n");
  EXPECT_EQ(config->stages[1].replicas, 4);
  auto npu = load_omni_transfer_config(over, "npu");
  ASSERT_TRUE(npu.ok()) << npu.status().to_string();
  EXPECT_EQ(npu->stages[0].replicas, 3);
  EXPECT_EQ(npu->stages[1].replicas, 2);
  EXPECT_TRUE(load_omni_transfer_config(over, "cuda").ok());
  EXPECT_THAT(std::string(load_omni_transfer_config(over, "npuu").status().message()),
              HasSubstr("did you mean `npu`?"));
}

TEST_F(ConfigFilesTest, AMistakeInAnInheritedFileNamesThatFile) {
  const std::string base =
      write("base.yaml", "stages:\n  - {stage_id: 0, output_connectors: []}\n");
  const std::string over = write("over.yaml", "base_config: base.yaml\nasync_chunk: true\n");
  EXPECT_THAT(std::string(load_omni_transfer_config(over).status().message()),
              HasSubstr(base + ":2:38: `output_connectors` must be a map, found a list"));
}

TEST_F(ConfigFilesTest, ACircleOfFilesIsRefused) {
  write("a.yaml", "base_config: b.yaml\n");
  const std::string b = write("b.yaml", "base_config: a.yaml\n");
  EXPECT_THAT(std::string(load_omni_transfer_config(b).status().message()),
              HasSubstr("more than 8 files"));
}

TEST_F(ConfigFilesTest, JsonIsReadLikeYamlAndOtherEndsAreRefused) {
  const std::string json = write("p.json", R"({"connectors": {"c": {"name": "YuanrongConnector"}},
    "stages": [{"stage_id": 0, "output_connectors": {"to_stage_1": "c"}}, {"stage_id": 1}]})");
  auto config = load_omni_transfer_config(json);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->edges.size(), 1U);
  EXPECT_THAT(std::string(load_omni_transfer_config(write("p.toml", "")).status().message()),
              HasSubstr("unsupported config file format"));
  EXPECT_EQ(load_omni_transfer_config(dir_ + "/none.yaml").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace stagelink::omni
