#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "connector/omni_config/config_json.h"
#include "connector/omni_config/kv_maps.h"
#include "connector/omni_config/ports.h"
#include "connector/omni_config/stage_resolution.h"
#include "connector/omni_config/typed_value.h"

namespace stagelink::omni {
namespace {

using testing::HasSubstr;

OmniTransferConfig config_of(std::string_view text) {
  auto tree = parse_config_tree(text, config::ConfigSyntax::kYaml, "p.yaml");
  if (!tree.ok()) throw std::runtime_error(tree.status().to_string());
  auto config = parse_transfer_config(*tree);
  if (!config.ok()) throw std::runtime_error(config.status().to_string());
  return *std::move(config);
}

std::string ports_text(const OmniTransferConfig& config) {
  auto plan = port_plan(config);
  if (!plan.ok()) return std::string(plan.status().message());
  std::string out;
  for (const PortUse& use : *plan) out += std::to_string(use.port) + " ";
  return out;
}

TEST(ConnectorPortTest, TheFormulaAddsPurposeReplicaRankAndStage) {
  EXPECT_EQ(*connector_port(50051, {PortPurpose::kRequestForwarding, 0, 0, 0}), 50051);
  EXPECT_EQ(*connector_port(50051, {PortPurpose::kKvTransfer, 1, 2, 3}),
            50051 + 100 + 3 * 1024 + 2 * 16 + 1);
  EXPECT_EQ(*connector_port(50051, {PortPurpose::kOrchestrator, 15, 0, 0}), 50266);
}

TEST(ConnectorPortTest, EveryBoundIsKept) {
  const auto reason = [](int64_t base, PortPlace place) {
    return connector_port(base, place).status().reason();
  };
  EXPECT_EQ(reason(50051, {PortPurpose::kKvTransfer, 16, 0, 0}), Reason::kOutOfBounds);
  EXPECT_EQ(reason(50051, {PortPurpose::kKvTransfer, -1, 0, 0}), Reason::kOutOfBounds);
  EXPECT_EQ(reason(50051, {PortPurpose::kKvTransfer, 0, -1, 0}), Reason::kOutOfBounds);
  EXPECT_EQ(reason(50051, {PortPurpose::kKvTransfer, 0, 0, -1}), Reason::kOutOfBounds);
  EXPECT_EQ(reason(50051, {PortPurpose::kKvTransfer, 0, 0, 16}), Reason::kOutOfBounds);
  EXPECT_EQ(reason(50051, {PortPurpose::kKvTransfer, 0, INT64_MAX, INT64_MAX}),
            Reason::kOutOfBounds);
  EXPECT_EQ(reason(65535, {PortPurpose::kRequestForwarding, 0, 0, 0}), Reason::kOk);
  EXPECT_EQ(reason(65535, {PortPurpose::kRequestForwarding, 1, 0, 0}), Reason::kOutOfBounds);
  EXPECT_EQ(reason(0, {}), Reason::kOutOfBounds);
  EXPECT_EQ(reason(1, {}), Reason::kOk);
}

constexpr std::string_view kTwoSenders = R"(connectors:
  te: {name: MooncakeTransferEngineConnector, extra: {host: auto}}
stages:
  - {stage_id: 0, omni_kv_config: {need_send_cache: true}, output_connectors: {to_stage_1: te}}
  - {stage_id: 1}
  - {stage_id: 4, tensor_parallel_size: 7, output_connectors: {to_stage_5: te}}
  - {stage_id: 5}
)";

TEST(PortPlanTest, ACollisionOfTwoPurposesNamesBothUsers) {
  const std::string text = ports_text(config_of(kTwoSenders));
  EXPECT_THAT(text, HasSubstr("port 50151 would be used twice: by edge 0->1 "
                              "(MooncakeTransferEngineConnector), kv_transfer, replica 0, rank 0, "
                              "and by edge 4->5 (MooncakeTransferEngineConnector), "
                              "request_forwarding, replica 0, rank 6"));
  std::string six(kTwoSenders);
  six.replace(six.find("size: 7"), 7, "size: 6");
  EXPECT_EQ(ports_text(config_of(six)), "50051 50151 50055 50071 50087 50103 50119 50135 ");
}

TEST(PortPlanTest, OneConnectorForTwoEdgesListensOnceAndTwoDoNotShareAPort) {
  constexpr std::string_view kFan = R"(connectors:
  a: {name: NixlConnector, extra: {zmq_port: 40000}}
  b: {name: NixlConnector, extra: {zmq_port: 40000, host: auto}}
stages:
  - {stage_id: 0, output_connectors: {to_stage_1: a, to_stage_2: a}}
  - {stage_id: 1}
  - {stage_id: 2}
)";
  EXPECT_EQ(ports_text(config_of(kFan)), "40000 ");
  std::string other(kFan);
  other.replace(other.find("to_stage_2: a"), 13, "to_stage_2: b");
  EXPECT_THAT(ports_text(config_of(other)), HasSubstr("port 40000 would be used twice"));
}

TEST(PortPlanTest, ABasePortMayBeFreeOrAVariableAndIsCheckedOtherwise) {
  const auto with = [](const std::string& port) {
    return ports_text(config_of("connectors: {a: {name: NixlConnector, extra: {zmq_port: " + port +
                                "}}}\nstages:\n  - {stage_id: 0, num_replicas: 2, "
                                "output_connectors: {to_stage_1: a}}\n  - {stage_id: 1}\n"));
  };
  EXPECT_EQ(with("auto"), "");
  EXPECT_EQ(with("0"), "");
  EXPECT_EQ(with("\"5000\""), "5000 6024 ");
  ::setenv("OMNI_TEST_PORT", "7000", 1);
  EXPECT_EQ(with("$OMNI_TEST_PORT"), "7000 8024 ");
  EXPECT_EQ(with("\"${OMNI_TEST_PORT}\""), "7000 8024 ");
  ::unsetenv("OMNI_TEST_PORT");
  EXPECT_THAT(with("$OMNI_TEST_PORT"), HasSubstr("variable OMNI_TEST_PORT is not set"));
  EXPECT_THAT(with("5k"), HasSubstr("expected a port or auto, found `5k`"));
  EXPECT_THAT(with("65535"), HasSubstr("replica 1, rank 0: connector port 66559"));
}

constexpr std::string_view kChain = R"(connectors:
  s: {name: YuanrongConnector, extra: {port: 1}}
  n: {name: NixlConnector, extra: {zmq_port: 40000}}
stages:
  - {stage_id: 0, output_connectors: {to_stage_1: s}}
  - {stage_id: 1, output_connectors: {to_stage_2: s}}
  - {stage_id: 2, output_connectors: {to_stage_3: n}}
  - {stage_id: 3, output_connectors: {to_stage_4: n}}
  - {stage_id: 4}
edges: [{from: 0, to: 1, window_size: 4}]
)";

TEST(StageResolutionTest, EachStageGetsItsRoleAndEnds) {
  const OmniTransferConfig config = config_of(kChain);
  EXPECT_EQ(
      *stage_json(config, "0"),
      R"({"connectors":{"to_stage_1":{"spec":{"name":"YuanrongConnector","extra":{"from_stage":0,)"
      R"("port":1,"role":"sender","to_stage":1,"window_size":4}}}},"connector":{"name":)"
      R"("YuanrongConnector","extra":{"port":1,"role":"sender","window_size":4}},"kv":[{"type":)"
      R"("YuanrongConnector","port":1,"role":"sender","window_size":4},"0","1"]})");
  EXPECT_EQ(
      *stage_json(config, "1"),
      R"({"connectors":{"from_stage_0":{"spec":{"name":"YuanrongConnector","extra":{"from_stage":0,)"
      R"("port":1,"role":"receiver","to_stage":1,"window_size":4}}}},"connector":{"name":)"
      R"("YuanrongConnector","extra":{"port":1,"role":"receiver","window_size":4}},"kv":[{"type":)"
      R"("YuanrongConnector","port":1,"role":"sender"},"1","2"]})");
  EXPECT_EQ(
      *stage_json(config, "3"),
      R"({"connectors":{"from_stage_2":{"spec":{"name":"NixlConnector","extra":{"from_stage":2,)"
      R"("role":"receiver","to_stage":3,"zmq_port":40000}}}},"connector":{"name":"NixlConnector",)"
      R"("extra":{"from_stage":2,"outgoing":{"from_stage":3,"to_stage":4,"zmq_port":40000},)"
      R"("role":"receiver","to_stage":3,"zmq_port":40000}},"kv":[{"type":"NixlConnector","role":)"
      R"("sender","zmq_port":40000},"3","4"]})");
  EXPECT_EQ(*stage_json(config, "9"), R"({"connectors":{},"connector":{},"kv":[null,null,null]})");
}

TEST(StageResolutionTest, AMiddleStageWithNixlNeedsItOnBothSides) {
  std::string text(kChain);
  text.replace(text.find("to_stage_4: n"), 13, "to_stage_4: s");
  EXPECT_THAT(stage_json(config_of(text), "3").status().message(),
              HasSubstr("A NIXL middle stage requires NIXL on its outgoing edge"));
}

TEST(StageResolutionTest, AWorkerGetsThePortsOfItsRole) {
  const auto resolve = [](const char* json, Role role) {
    auto text = resolve_connector_json(json, {2, role, PortPurpose::kKvTransfer, 1, 0});
    return text.ok() ? *text : std::string(text.status().message());
  };
  EXPECT_EQ(resolve(R"({"name":"NixlConnector","extra":{"zmq_port":40000,"from_stage":1}})",
                    Role::kSender),
            R"({"name":"NixlConnector","extra":{"from_stage":1,"role":"sender","stage_id":2,)"
            R"("zmq_port":40117}})");
  EXPECT_EQ(
      resolve(R"({"name":"NixlConnector","extra":{"zmq_port":40000,"host":"auto"}})",
              Role::kReceiver),
      R"({"name":"NixlConnector","extra":{"host":"auto","role":"receiver","sender_host":"auto",)"
      R"("sender_zmq_port":40118,"stage_id":2}})");
  EXPECT_EQ(resolve(R"({"name":"YuanrongConnector","extra":{"port":1}})", Role::kNone),
            R"({"name":"YuanrongConnector","extra":{"port":1,"stage_id":2}})");
  EXPECT_THAT(resolve(R"({"name":"NixlConnector","extra":{"zmq_port":65500}})", Role::kSender),
              HasSubstr("connector port"));
  EXPECT_THAT(resolve(R"({"name":"NixlConnector"})", Role::kSender), HasSubstr("no extra"));
}

TEST(StageResolutionTest, TheResolvedFormIsReadBack) {
  const OmniTransferConfig config = config_of(kChain);
  const std::string json = *transfer_config_json(config);
  auto again = transfer_config_of_json(json);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  for (const char* stage : {"0", "1", "2", "3", "4"}) {
    EXPECT_EQ(*stage_json(*again, stage), *stage_json(config, stage));
  }
  EXPECT_FALSE(transfer_config_of_json("[]").ok());
  EXPECT_FALSE(transfer_config_of_json(R"({"edges":[{"from":"0"}]})").ok());
}

config::ConfigNode extra_of(std::string_view text) {
  auto node = config::parse_config(text, config::ConfigSyntax::kYaml, "x");
  if (!node.ok()) throw std::runtime_error(node.status().to_string());
  return *std::move(node);
}

TEST(TypedValueTest, ScalarsAreTypedAsTheHostReadsThem) {
  EXPECT_EQ(to_json(extra_of("{a: yes, b: 'yes', c: 0x10, d: 1_000, e: 010, f: 1.5, g: 1e3, h: ~, "
                             "i: 1.0e+3, j: -7, k: .inf, l: 127.0.0.1, m: 1:30, n: 0b11, o: Off, "
                             "p: 99999999999999999999, q: [1, x], r: +3, s: 1., t: -.5}")),
            R"({"a":true,"b":"yes","c":16,"d":1000,"e":8,"f":1.5,"g":"1e3","h":null,"i":1000.0,)"
            R"("j":-7,"k":".inf","l":"127.0.0.1","m":"1:30","n":3,"o":false,)"
            R"("p":"99999999999999999999","q":[1,"x"],"r":3,"s":1.0,"t":-0.5})");
}

TEST(TypedValueTest, DifferencesAreNamedByTheirKey) {
  EXPECT_EQ(first_difference(extra_of("{a: 1, b: {c: x}}"), extra_of("{b: {c: 'x'}, a: 0x1}")), "");
  EXPECT_EQ(first_difference(extra_of("{a: 1, b: {c: x}}"), extra_of("{a: 1, b: {c: y}}")), "b.c");
  EXPECT_EQ(first_difference(extra_of("{a: 1}"), extra_of("{a: '1'}")), "a");
  EXPECT_EQ(first_difference(extra_of("{}"), extra_of("{z: 1}")), "z");
}

TEST(StoreNamespaceTest, BothEndsOfAnEdgeHaveTheSameAndOtherPipelinesAnother) {
  const std::string own = default_namespace(extra_of("{backend: shm, capacity: 1GiB}"));
  EXPECT_EQ(own, "omni-dc34cf04b808e6c3");  // Golden: processes of other builds meet here.
  EXPECT_EQ(default_namespace(extra_of("{capacity: 1GiB, role: sender, stage_id: 3, from_stage: 3, "
                                       "to_stage: 4, zmq_port: 5, sender_host: h, window_size: 2, "
                                       "backend: 'shm'}")),
            own);
  EXPECT_NE(default_namespace(extra_of("{backend: shm, capacity: 2GiB}")), own);
  EXPECT_EQ(store_namespace({"YuanrongConnector", extra_of("{namespace: mine}")}), "mine");
}

// Two stages, whose second lines are as told.
OmniTransferConfig kv_pipeline(const std::string& sender, const std::string& receiver) {
  return config_of(R"(connectors: {te: {name: YuanrongTransferEngineConnector}}
stages:
  - {stage_id: 0, output_connectors: {to_stage_1: te}, )" +
                   sender + R"(}
  - {stage_id: 1, input_connectors: {from_stage_0: te}, )" +
                   receiver + "}\n");
}

TEST(KvMapTest, SizesComeFromTheMappingOrFromTheStages) {
  const auto topology = [](const std::string& sender, const std::string& receiver) {
    auto maps = kv_maps(kv_pipeline(sender, receiver));
    EXPECT_TRUE(maps.ok()) << maps.status().to_string();
    EXPECT_EQ(maps->size(), 1U);
    const kv::TpTopology& found = maps->front().map.topology();
    return std::vector<uint32_t>{found.from_tp, found.to_tp, found.kv_heads, found.mla ? 1U : 0U};
  };
  using Sizes = std::vector<uint32_t>;
  EXPECT_EQ(topology("omni_kv_config: {need_send_cache: true}, tensor_parallel_size: 4",
                     "tensor_parallel_size: 2"),
            (Sizes{4, 2, 0, 0}));
  EXPECT_EQ(topology("engine_args: {omni_kv_config: {need_send_cache: true, "
                     "rank_mapping: {from_tp: 4, to_tp: 4}}}",
                     "omni_kv_config: {rank_mapping: {from_tp: 4, to_tp: 4}, kv_heads: 2}"),
            (Sizes{4, 4, 2, 0}));
  EXPECT_EQ(topology("omni_kv_config: {need_send_cache: true, mla: true}", "x: 1"),
            (Sizes{1, 1, 0, 1}));
  EXPECT_TRUE(kv_maps(kv_pipeline("x: 1", "omni_kv_config: {need_recv_cache: true}"))->empty());
}

TEST(KvMapTest, WhatDoesNotAgreeIsNamed) {
  const auto message = [](const std::string& sender, const std::string& receiver) {
    auto maps = kv_maps(kv_pipeline("omni_kv_config: {need_send_cache: true, " + sender, receiver));
    return std::string(maps.status().message());
  };
  EXPECT_THAT(message("rank_mapping: {from_tp: 4}}", "x: 1"),
              HasSubstr("p.yaml:3:39: KV cache of edge 0->1: rank_mapping of stage 0 needs both"));
  EXPECT_THAT(message("rank_mapping: {from_tp: 4, to_tp: 4}}, tensor_parallel_size: 2", "x: 1"),
              HasSubstr("from_tp of stage 0 says 4, and tensor_parallel_size of stage 0 says 2"));
  EXPECT_THAT(message("rank_mapping: {from_tp: 4, to_tp: 4}}",
                      "omni_kv_config: {rank_mapping: {from_tp: 4, to_tp: 2}}"),
              HasSubstr("to_tp of stage 0 says 4, and to_tp of stage 1 says 2"));
  EXPECT_THAT(message("rank_mapping: {from_tp: 4, to_tp: 3}}", "x: 1"),
              HasSubstr("must be divisible: source_tp_size=4, target_tp_size=3"));
  EXPECT_THAT(message("rank_mapping: {from_tp: four, to_tp: 3}}", "x: 1"),
              HasSubstr("from_tp of stage 0 is no number"));
}

TEST(KvMapTest, TheJsonOfAPipelineHasThem) {
  const auto json = transfer_config_json(
      kv_pipeline("omni_kv_config: {need_send_cache: true}, tensor_parallel_size: 4",
                  "tensor_parallel_size: 2"));
  ASSERT_TRUE(json.ok());
  EXPECT_THAT(*json, HasSubstr(R"x("kv":[{"edge":"0->1","from_tp":4,"to_tp":2,"kv_heads":0,)x"));
  EXPECT_THAT(*json, HasSubstr(R"x("rank 1 <- rank 2 (all of it), rank 3 (all of it)")x"));
}

}  // namespace
}  // namespace stagelink::omni
