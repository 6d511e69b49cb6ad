#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/runtime_dir.h"
#include "config/config_node.h"
#include "connector/pull/messages/messages.h"
#include "connector/pull/messages/omni_messages.h"
#include "connector/pull/messages/stamp.h"
#include "connector/pull/options.h"
#include "connector/pull/pull_types.h"
#include "stagelink/version.h"

namespace stagelink::pull {
namespace {

RegionDesc some_region() {
  RegionDesc desc;
  desc.instance = {11, 12};
  desc.index = 3;
  desc.generation = 4;
  desc.address = 0x10000;
  desc.bytes = 0x4000;
  return desc;
}

// What decoding a cut or longer message gives, and one whose `at` byte is `value`.
template <typename M>
Status decode_as(MessageSpan in) {
  M out;
  return decode(in, out);
}

// `optional`: bytes at the end that peers of old do not send.
template <typename M>
void expect_cut_is_refused(const Message& whole, size_t optional = 0) {
  for (size_t size = 0; size < whole.size() - optional; ++size) {
    EXPECT_FALSE(decode_as<M>(MessageSpan(whole).first(size)).ok()) << size;
  }
  EXPECT_TRUE(decode_as<M>(whole).ok());
  // A newer minor may append.
  Message longer = whole;
  longer.resize(whole.size() + 5);
  EXPECT_TRUE(decode_as<M>(longer).ok());
}

TEST(PullMessagesTest, EveryMessageComesBackAsItWas) {
  Message out;
  encode(HelloMessage{{5, 6}}, out);
  EXPECT_EQ(*message_type(out), MessageType::kHello);
  HelloMessage hello;
  ASSERT_TRUE(decode(out, hello).ok());
  EXPECT_EQ(hello.receiver, (InstanceId{5, 6}));
  expect_cut_is_refused<HelloMessage>(out);

  WelcomeMessage welcome;
  welcome.life = {1, 2};
  welcome.host = {3, 4};
  welcome.claim_ms = 60'000;
  welcome.pool = welcome.stamps = some_region();
  welcome.socket_path = "/run/x.sock";
  welcome.engine = {std::byte{1}, std::byte{2}};
  encode(welcome, out);
  WelcomeMessage welcomed;
  ASSERT_TRUE(decode(out, welcomed).ok());
  EXPECT_EQ(welcomed.pool, welcome.pool);
  EXPECT_EQ(welcomed.socket_path, welcome.socket_path);
  EXPECT_EQ(welcomed.engine, welcome.engine);
  expect_cut_is_refused<WelcomeMessage>(out);

  encode(ClaimMessage{{5, 6}, {1, 2}, 7, {{8, 9, "key"}, {10, 0, std::string_view("\0x", 2)}}},
         out);
  ClaimMessage claim;
  ASSERT_TRUE(decode(out, claim).ok());
  ASSERT_EQ(claim.entries.size(), 2u);
  EXPECT_EQ(claim.entries[0].key, "key");
  EXPECT_EQ(claim.entries[1].key, std::string_view("\0x", 2));
  EXPECT_EQ(claim.wait_ms, 7u);
  EXPECT_FALSE(claim.takes_answers);
  expect_cut_is_refused<ClaimMessage>(out, sizeof(uint32_t));
  claim.takes_answers = true;
  encode(claim, out);
  ClaimMessage flagged;
  ASSERT_TRUE(decode(out, flagged).ok());
  EXPECT_TRUE(flagged.takes_answers);
  ASSERT_TRUE(decode(MessageSpan(out).first(out.size() - 1), flagged).ok());
  EXPECT_FALSE(flagged.takes_answers);

  encode(ReleaseMessage{{5, 6}, {1, 2}, {{8, true}, {9, false}}}, out);
  ReleaseMessage release;
  ASSERT_TRUE(decode(out, release).ok());
  EXPECT_EQ(release.entries, (std::vector<ReleaseEntry>{{8, true}, {9, false}}));
  expect_cut_is_refused<ReleaseMessage>(out);

  encode(Denial{3, Reason::kSuperseded, "gone"}, out);
  Denial denial;
  ASSERT_TRUE(decode(out, denial).ok());
  EXPECT_EQ(denial.reason, Reason::kSuperseded);
  EXPECT_EQ(denial.why, "gone");
  expect_cut_is_refused<Denial>(out);
}

TEST(PullMessagesTest, AGrantComesBackAsItWas) {
  GrantBody body{77, 300, 128, false, {some_region()}, {{0, 5, 100}, {kPoolRegion, 0, 200}}};
  Message out;
  encode_grant({42, 5, 1000, {}}, encode_body(body), out);
  Grant grant;
  ASSERT_TRUE(decode(out, grant).ok());
  EXPECT_EQ(grant.id, 42u);
  EXPECT_EQ(grant.parked_ms, 5u);
  EXPECT_EQ(grant.body, body);
  expect_cut_is_refused<Grant>(out);
}

TEST(PullMessagesTest, AGrantWhosePiecesAreNotThePayloadIsRefused) {
  const auto decoded = [](const GrantBody& body) {
    Message out;
    encode_grant({1, 0, 1, {}}, encode_body(body), out);
    return decode_as<Grant>(out).reason();
  };
  const GrantBody good{1, 300, 0, true, {}, {{kPoolRegion, 0, 300}}};
  EXPECT_EQ(decoded(good), Reason::kOk);
  GrantBody bad = good;
  bad.bytes = 301;
  EXPECT_EQ(decoded(bad), Reason::kFrame);
  bad.bytes = 299;
  EXPECT_EQ(decoded(bad), Reason::kFrame);
  bad = good;
  bad.pieces[0].region = 0;  // There is none.
  EXPECT_EQ(decoded(bad), Reason::kFrame);
  bad = good;
  bad.pieces.push_back({kPoolRegion, 0, 0});
  EXPECT_EQ(decoded(bad), Reason::kFrame);
  bad = good;
  bad.bytes = bad.pieces[0].bytes = kMaxPayloadBytes;
  EXPECT_EQ(decoded(bad), Reason::kOk);
  bad.bytes = bad.pieces[0].bytes = kMaxPayloadBytes + 1;
  EXPECT_EQ(decoded(bad), Reason::kFrame);
  bad = good;
  bad.pieces[0].offset = UINT64_MAX - 10;
  EXPECT_EQ(decoded(bad), Reason::kFrame);
  for (const auto& [pieces, reason] :
       {std::pair(kMaxGrantPieces, Reason::kOk), std::pair(kMaxGrantPieces + 1, Reason::kFrame)}) {
    bad = good;
    bad.bytes = pieces;
    bad.pieces.assign(pieces, {kPoolRegion, 0, 1});
    EXPECT_EQ(decoded(bad), reason) << pieces;
  }
  bad = good;
  bad.regions.assign(kMaxGrantRegions, some_region());
  EXPECT_EQ(decoded(bad), Reason::kOk);
  bad.regions.push_back(some_region());
  EXPECT_EQ(decoded(bad), Reason::kFrame);
}

TEST(PullMessagesTest, CountsAndKeysAreBounded) {
  const auto claims = [](size_t count, size_t key_bytes) {
    const std::string key(key_bytes, 'k');
    ClaimMessage claim{{1, 1}, {2, 2}, 0, {}};
    claim.entries.assign(count, {1, 0, key});
    Message out;
    encode(claim, out);
    return decode_as<ClaimMessage>(out).ok();
  };
  EXPECT_TRUE(claims(1, 1));
  EXPECT_FALSE(claims(0, 1));
  EXPECT_FALSE(claims(1, 0));
  EXPECT_TRUE(claims(kMaxClaimEntries, kMaxKeyBytes));
  EXPECT_FALSE(claims(kMaxClaimEntries + 1, 1));
  EXPECT_FALSE(claims(1, kMaxKeyBytes + 1));
  const auto releases = [](size_t count) {
    ReleaseMessage release{{1, 1}, {2, 2}, {}};
    release.entries.assign(count, {1, true});
    Message out;
    encode(release, out);
    return decode_as<ReleaseMessage>(out).ok();
  };
  EXPECT_FALSE(releases(0));
  EXPECT_TRUE(releases(kMaxReleaseEntries));
  EXPECT_FALSE(releases(kMaxReleaseEntries + 1));
}

TEST(PullMessagesTest, AnswersComeTogetherAsFarAsAMessageGoes) {
  Message answer;
  encode(Denial{3, Reason::kSuperseded, "gone"}, answer);
  Message out;
  begin_answers(out);
  std::vector<MessageSpan> read;
  EXPECT_FALSE(decode_answers(out, read).ok());  // None.
  for (size_t i = 0; i < kMaxClaimEntries; ++i) EXPECT_TRUE(add_answer(answer, out));
  EXPECT_FALSE(add_answer(answer, out));
  ASSERT_TRUE(decode_answers(out, read).ok());
  EXPECT_EQ(read.size(), kMaxClaimEntries);
  EXPECT_EQ(Message(read.back().begin(), read.back().end()), answer);
  for (size_t size = 0; size < out.size(); ++size) {
    EXPECT_FALSE(decode_answers(MessageSpan(out).first(size), read).ok()) << size;
  }
  // Neither among themselves, nor what is no answer.
  for (const Message& other : {out, Message()}) {
    Message nested;
    begin_answers(nested);
    EXPECT_TRUE(add_answer(other, nested));
    EXPECT_FALSE(decode_answers(nested, read).ok());
  }
  begin_answers(out);
  const size_t room = kMaxMessageBytes - out.size() - sizeof(uint32_t);
  EXPECT_FALSE(add_answer(Message(room + 1), out));
  EXPECT_TRUE(add_answer(Message(room), out));
  EXPECT_EQ(out.size(), kMaxMessageBytes);
}

TEST(PullMessagesTest, AnotherVersionIsNamed) {
  Message out;
  encode(HelloMessage{{5, 6}}, out);
  EXPECT_TRUE(is_pull_message(out));
  out[4] = static_cast<std::byte>(kProtocolMajor + 1);
  EXPECT_TRUE(is_pull_message(out));
  EXPECT_EQ(message_type(out).status().reason(), Reason::kVersion);
  out[4] = static_cast<std::byte>(kProtocolMajor);
  out[6] = static_cast<std::byte>(kProtocolMinor + 1);
  EXPECT_TRUE(message_type(out).ok());
  out[6] = static_cast<std::byte>(kProtocolMinor + 2);
  EXPECT_EQ(message_type(out).status().reason(), Reason::kVersion);
  out[6] = static_cast<std::byte>(kProtocolMinor);
  out[8] = std::byte{99};
  EXPECT_EQ(message_type(out).status().reason(), Reason::kFrame);
  out[0] = std::byte{0};
  EXPECT_FALSE(is_pull_message(out));
}

std::string hex(MessageSpan bytes) {
  std::string out;
  for (const std::byte byte : bytes) out += fmt::format("{:02x}", static_cast<int>(byte));
  return out;
}

TEST(PullMessagesTest, ThoseOf030AreTheSameBytes) {
  EXPECT_EQ(hex(omni_request(OmniRequest::kQuery, "k@0_1")),
            "71756572795f696e666f81aa726571756573745f6964a56b40305f31");
  const Message info = omni_info({"k@0_1", 40001, 16, true, {140000000000000}, {16}});
  EXPECT_EQ(hex(info),
            "86aa726571756573745f6964a56b40305f31a87270635f706f7274cd9c41a9646174615f73697a6510"
            "ac69735f666173745f70617468c3a97372635f616464727391cf00007f544a44c000a76c656e677468"
            "739110");
  const auto read = read_omni_info(info);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ((*read).rpc_port, 40001);
  EXPECT_EQ((*read).addresses, std::vector<uint64_t>{140000000000000});
  const auto ask = read_omni_request(omni_request(OmniRequest::kCleanup, "k"));
  ASSERT_TRUE(ask.has_value());
  EXPECT_EQ(ask->request, OmniRequest::kCleanup);
  EXPECT_EQ(ask->key, "k");
  EXPECT_FALSE(read_omni_request(omni_word("ack_ok")).has_value());
  EXPECT_EQ(read_omni_request(omni_word("query_infoXYZ"))->key, "");
  // Lengths that are not the payload's, or not the addresses'.
  EXPECT_FALSE(read_omni_info(omni_info({"k", 1, 17, true, {4096}, {16}})).ok());
  EXPECT_FALSE(read_omni_info(omni_info({"k", 1, 16, true, {4096, 8192}, {16}})).ok());
}

// Held still: peers of other builds read them.
TEST(PullMessagesTest, LayoutsStayAsTheyAre) {
  Message out;
  encode(HelloMessage{{5, 6}}, out);
  EXPECT_EQ(hex(out), "534c504d010002000100000005000000000000000600000000000000");
  encode(ClaimMessage{{5, 6}, {1, 2}, 7, {{8, 9, "key"}}, true}, out);
  EXPECT_EQ(hex(out),
            "534c504d010002000300000005000000000000000600000000000000010000000000000002000000000000"
            "0007000000010000000800000000000000090000000000000003006b657901000000");
  encode(ReleaseMessage{{5, 6}, {1, 2}, {{8, true}}}, out);
  EXPECT_EQ(hex(out),
            "534c504d010002000600000005000000000000000600000000000000010000000000000002000000000000"
            "0001000000080000000000000001");
  encode(Denial{3, Reason::kSuperseded, "gone"}, out);
  EXPECT_EQ(hex(out),
            "534c504d010002000500000003000000000000000006"
            "0400676f6e65");
  encode_grant({42, 5, 1000, {}}, encode_body({77, 300, 128, true, {}, {{kPoolRegion, 64, 300}}}),
               out);
  EXPECT_EQ(hex(out),
            "534c504d01000200040000002a0000000000000005000000e80300004d000000000000002c010000000000"
            "0080000000000000000100000001000000000000"
            "00ffffffff0000000040000000000000002c01000000000000");
}

TEST(PullStampTest, OnlyTheStampOfThatOfferIsTaken) {
  Stamp stamp;
  stamp.generation = 5;
  stamp.bytes = 100;
  stamp.key = key_digest("k");
  EXPECT_TRUE(check_stamp(stamp, 5, 100, key_digest("k")).ok());
  EXPECT_EQ(check_stamp(stamp, 6, 100, key_digest("k")).reason(), Reason::kSuperseded);
  EXPECT_FALSE(check_stamp(stamp, 5, 101, key_digest("k")).ok());
  EXPECT_FALSE(check_stamp(stamp, 5, 100, key_digest("l")).ok());
  stamp.magic = 0;
  EXPECT_FALSE(check_stamp(stamp, 5, 100, key_digest("k")).ok());
}

// --- Options ---

Result<LoadedPullOptions> load(std::string_view text,
                               config::ConfigSyntax syntax = config::ConfigSyntax::kJson) {
  SL_ASSIGN(const config::ConfigNode node, config::parse_config(text, syntax, "p.yaml"));
  return load_pull_options(
      node, [](const config::ConfigNode& at) { return fmt::format("p.yaml:{}", at.line); });
}

TEST(PullOptionsTest, ThoseOfTheSeedAsPrintedAreTaken) {
  auto loaded = load(R"(host: "auto"
zmq_port: 50051
rpc_port: "auto"
protocol: "ascend"
device_name: "auto"
memory_pool_size: 1073741824
memory_pool_device: "npu"
)",
                     config::ConfigSyntax::kYaml);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const PullOptions& options = (*loaded).options;
  EXPECT_EQ(options.zmq_port, 50051u);
  EXPECT_EQ(options.rpc_port, 0u);
  EXPECT_EQ(options.memory_pool_size, uint64_t{1} << 30);
  EXPECT_EQ(options.pool_device(), "npu");
}

TEST(PullOptionsTest, WhatAHostAddsIsTaken) {
  auto loaded = load(R"({"role": "receiver", "from_stage": "0", "to_stage": 1, "stage_id": 2,
      "sender_host": "auto", "sender_zmq_port": 50151, "buffer_ttl_seconds": 1.5, "zmq_port": null,
      "type": "x", "window_size": -1, "something_of_the_host": {"a": 1}})");
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const PullOptions& options = (*loaded).options;
  EXPECT_EQ(options.role, Role::kReceiver);
  EXPECT_EQ(options.from_stage, "0");
  EXPECT_EQ(options.to_stage, "1");
  EXPECT_EQ(options.sender_host, "");
  EXPECT_EQ(options.sender_zmq_port, 50151u);
  EXPECT_EQ(options.buffer_ttl, std::chrono::milliseconds(1500));
  EXPECT_EQ((*load(R"({"buffer_ttl_seconds": 0})")).options.buffer_ttl, Duration::zero());
  EXPECT_EQ((*load(R"({"buffer_ttl_seconds": -1})")).options.buffer_ttl, Duration::zero());
  EXPECT_EQ((*load(R"({"protocol": "rdma"})")).options.protocol, "auto");
  EXPECT_EQ((*load(R"({"protocol": "rdma"})")).notes.size(), 1u);
}

TEST(PullOptionsTest, WhatCannotBeIsNamed) {
  struct Case {
    const char* text;
    Reason reason;
    const char* part;
  };
  for (const Case& each : {
           Case{R"({"zmq_prot": 5})", Reason::kUnknownKey, "zmq_port"},
           Case{R"({"zmq_port": 65536})", Reason::kInvalidArgument, "zmq_port"},
           Case{R"({"zmq_port": "$SL_NOT_SET"})", Reason::kInvalidArgument, "SL_NOT_SET"},
           Case{R"({"role": "both"})", Reason::kInvalidArgument, "role"},
           Case{R"({"protocol": "ucx"})", Reason::kInvalidArgument, "protocol"},
           Case{R"({"memory_pool_size": 0})", Reason::kInvalidArgument, "memory_pool_size"},
           Case{R"({"memory_pool_device": "npu"})", Reason::kUnsupported, "ascend"},
           Case{R"({"memory_pool_device": "cuda"})", Reason::kInvalidArgument,
                "memory_pool_device"},
           Case{R"({"protocol": "ascend", "memory_pool_device": "cpu"})", Reason::kUnsupported,
                "memory_pool_device"},
           Case{R"({"compat_030": true, "secret_file": "/s"})", Reason::kUnsupported, "compat_030"},
           Case{R"({"claim_timeout": "1ms"})", Reason::kInvalidArgument, "claim_timeout"},
           Case{R"({"max_offers": 0})", Reason::kInvalidArgument, "max_offers"},
           Case{R"({"host": ["a"]})", Reason::kInvalidArgument, "host"},
       }) {
    const auto loaded = load(each.text);
    EXPECT_EQ(loaded.status().reason(), each.reason) << each.text << loaded.status().to_string();
    EXPECT_NE(loaded.status().message().find(each.part), std::string_view::npos)
        << loaded.status().to_string();
  }
}

TEST(PullOptionsTest, WhatDoesNotGoTogetherIsPlacedWhereItIsSet) {
  for (const auto& [text, message] :
       {std::pair("protocol: ascend\nmemory_pool_device: cpu\n", "p.yaml:2: memory_pool_device"),
        std::pair("memory_pool_device: npu\nprotocol: tcp\n", "p.yaml:1: memory_pool_device"),
        std::pair("secret_file: /s\nhost: auto\ncompat_030: true\n", "p.yaml:3: compat_030")}) {
    const Status status = load(text, config::ConfigSyntax::kYaml).status();
    EXPECT_EQ(status.message().find(message), 0u) << status.to_string();
  }
}

TEST(PullOptionsTest, ARuntimeDirHoldsAsManyBytesAsAnEngines) {
  const auto with = [](size_t bytes) {
    return load(fmt::format(R"({{"runtime_dir": "/{}"}})", std::string(bytes - 1, 'd'))).status();
  };
  EXPECT_TRUE(with(kMaxRuntimeDirBytes).ok());
  EXPECT_EQ(with(kMaxRuntimeDirBytes + 1).reason(), Reason::kInvalidArgument);
  EXPECT_NE(with(kMaxRuntimeDirBytes + 1).message().find("a text of 0 to 85 bytes"),
            std::string_view::npos);
}

}  // namespace
}  // namespace stagelink::pull
