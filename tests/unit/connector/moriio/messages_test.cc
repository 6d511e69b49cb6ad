#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "connector/moriio/messages/handshake.h"
#include "connector/moriio/messages/heartbeat.h"
#include "connector/moriio/messages/notify_message.h"

namespace stagelink::moriio {
namespace {

Bytes from_hex(std::string_view hex) {
  Bytes out;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<std::byte>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  }
  return out;
}

Bytes from_text(std::string_view text) {
  const auto raw = std::as_bytes(std::span(text));
  return {raw.begin(), raw.end()};
}

// MessagePack by hand, for frames that no encoder would write. Fewer than 16 keys, short texts.
std::string str(std::string_view text) {
  return static_cast<char>(0xa0 | text.size()) + std::string(text);
}
std::string map(std::initializer_list<std::string> parts) {
  std::string out(1, static_cast<char>(0x80 | (parts.size() / 2)));
  for (const auto& part : parts) out += part;
  return out;
}
std::string number(int value) { return std::string(1, static_cast<char>(value)); }
std::string list(std::initializer_list<int> values) {
  std::string out(1, static_cast<char>(0x90 | values.size()));
  for (const int value : values) out += static_cast<char>(value);
  return out;
}

Status refusal(std::string_view frame) { return decode_notify_message(from_text(frame)).status(); }

bool names(const Status& status, std::string_view field) {
  return status.message().find(field) != std::string_view::npos;
}

RemoteBlocks sample_blocks() {
  return {.request_id = "req-1", .transfer_id = "tx-1", .block_ids = {4, 5, 300}, .decode_rank = 3};
}

// Recorded from vLLM 0.32.
struct GoldenNotify {
  NotifyMessage message;
  std::string_view hex;
};
std::vector<GoldenNotify> golden_notify() {
  return {
      {sample_blocks(),
       "85a67265715f6964a57265712d31ab7472616e736665725f6964a474782d31b1626c6f636b5f6e6f746966795f6"
       "c"
       "697374930405cd012cab6465636f64655f72616e6b03a474797065ad72656d6f74655f626c6f636b73"},
      {WriteDone{.transfer_id = "tx-1"},
       "82a474797065aa77726974655f646f6e65ab7472616e736665725f6964a474782d31"},
      {Release{.transfer_id = "tx-1", .consumer_tp_size = 8},
       "83a474797065a772656c65617365ab7472616e736665725f6964a474782d31b0636f6e73756d65725f74705f736"
       "9"
       "7a6508"},
      {LegacyId{"tx-1"}, "74782d31"},
  };
}

TEST(NotifyMessageTest, IsByteForByteWhatVllmSends) {
  for (const auto& golden : golden_notify()) {
    const auto bytes = encode(golden.message);
    ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
    EXPECT_EQ(*bytes, from_hex(golden.hex)) << message_type(golden.message);
    const auto again = decode_notify_message(from_hex(golden.hex));
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_TRUE(*again == golden.message);
  }
}

TEST(NotifyMessageTest, ExtraFieldsTravelBehindTheKeysOfVllm) {
  RemoteBlocks message = sample_blocks();
  message.extras = {.version = 1,
                    .compat_hash = "0123456789abcdef",
                    .incarnation = "i",
                    .status = "ok",
                    .first_block = 7,
                    .token = "t",
                    .tp_size = 2,
                    .tp_rank = 1,
                    .writes = 2,
                    .block_groups = {{4, 5, 300}, {}, {9}}};
  auto bytes = encode(message);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  const auto plain = *encode(sample_blocks());
  ASSERT_GT(bytes->size(), plain.size());
  // All but the head, which counts the keys.
  EXPECT_TRUE(std::equal(plain.begin() + 1, plain.end(), bytes->begin() + 1));
  EXPECT_TRUE(*decode_notify_message(*bytes) == NotifyMessage(message));
}

TEST(NotifyMessageTest, KeysOfOthersAreIgnored) {
  const std::string nested = map({str("x"), list({1, 2})});
  const auto message = decode_notify_message(
      from_text(map({str("later"), nested, str("transfer_id"), str("tx-1"), str("status"),
                     number(5), str("type"), str("write_done")})));
  ASSERT_TRUE(message.ok()) << message.status().to_string();
  EXPECT_TRUE(*message == NotifyMessage(WriteDone{.transfer_id = "tx-1"}));
}

TEST(NotifyMessageTest, ExtraFieldsCountOnlyBesideAVersion) {
  const std::string body = str("type") + str("write_done") + str("transfer_id") + str("t") +
                           str("status") + number(5) + str("version") + number(1);
  EXPECT_TRUE(names(refusal("\x84" + body), "`status` is no text"));
}

TEST(NotifyMessageTest, AMapWithoutATypeIsOfFormerTimes) {
  const auto message = decode_notify_message(
      from_text(map({str("block_notify_list"), list({1, 2}), str("req_id"), str("cmpl-1")})));
  ASSERT_TRUE(message.ok()) << message.status().to_string();
  EXPECT_TRUE(*message ==
              NotifyMessage(RemoteBlocks{
                  .request_id = "cmpl-1", .transfer_id = "cmpl-1", .block_ids = {1, 2}}));
}

TEST(NotifyMessageTest, AnEmptyBlockListIsAMessageLikeAnyOther) {
  RemoteBlocks message = sample_blocks();
  message.block_ids.clear();
  EXPECT_TRUE(*decode_notify_message(*encode(message)) == NotifyMessage(message));
}

TEST(NotifyMessageTest, TheWidthOfAReleaseMayBeDigits) {
  const auto release = [](const std::string& width) {
    return decode_notify_message(
        from_text(map({str("type"), str("release"), str("transfer_id"), str("t"),
                       std::string("\xb0") + "consumer_tp_size", width})));
  };
  EXPECT_EQ(std::get<Release>(*release(str("8"))).consumer_tp_size, 8U);
  for (const std::string& width : {str("0"), str("-1"), str("8x"), str("1025"), number(0)}) {
    EXPECT_TRUE(names(release(width).status(), "consumer_tp_size")) << width;
  }
}

// Each mandatory key in turn is left out, renamed and given as a text.
TEST(NotifyMessageTest, AMandatoryKeyThatIsMissingOrOfTheWrongKindIsNamed) {
  struct Field {
    std::string name;
    std::string value;
    bool text;
  };
  const std::vector<std::vector<Field>> messages = {
      {{"type", str("remote_blocks"), true},
       {"req_id", str("r"), true},
       {"transfer_id", str("t"), true},
       {"block_notify_list", list({1}), false},
       {"decode_rank", number(3), false}},
      {{"type", str("write_done"), true}, {"transfer_id", str("t"), true}},
      {{"type", str("write_failed"), true}, {"transfer_id", str("t"), true}},
      {{"type", str("renew"), true}, {"transfer_id", str("t"), true}},
      {{"type", str("release"), true}, {"transfer_id", str("t"), true}},
  };
  const auto frame = [](const std::vector<Field>& fields) {
    std::string out(1, static_cast<char>(0x80 | fields.size()));
    for (const Field& field : fields) out += str(field.name) + field.value;
    return out;
  };
  for (const auto& fields : messages) {
    for (size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].name == "type" && fields.size() == 5) continue;  // Then it is of former times.
      auto changed = fields;
      changed.erase(changed.begin() + static_cast<long>(i));
      EXPECT_TRUE(names(refusal(frame(changed)), "`" + fields[i].name + "` is missing"));
      changed = fields;
      changed[i].name = "x" + fields[i].name.substr(1);
      EXPECT_TRUE(names(refusal(frame(changed)), "`" + fields[i].name + "` is missing"));
      changed = fields;
      changed[i].value = fields[i].text ? number(8) : str("8");
      EXPECT_TRUE(names(refusal(frame(changed)), "`" + fields[i].name + "` is no"))
          << refusal(frame(changed)).to_string();
    }
  }
}

TEST(NotifyMessageTest, RefusesWhatIsNoMessage) {
  const std::string deep = map({str("type"), str("write_done"), str("transfer_id"), str("t"),
                                str("x"), "\x91\x91\x91\x91\x90"});
  const std::vector<std::pair<std::string, std::string_view>> frames = {
      {"", "neither"},
      {"a\nb", "neither"},
      {"\xff\xfe", "neither"},
      {"\x80", "`type` is missing"},
      {map({str("type"), str("other")}), "unknown type `other`"},
      {map({str("type"), str("write_done")}) + "x", "follow its end"},
      {"\x82" + str("type"), "cut off"},
      {map({str("type"), str("write_done"), str("type"), str("write_done")}), "twice"},
      {map({number(1), number(2)}), "a key is no text"},
      {deep, "nested too deeply"},
      {std::string("\xdf\xff\xff\xff\xff", 5), "longer than the frame"},
      {map({str("type"), str("write_done"), str("transfer_id"), str("")}), "is empty"},
      {map({str("type"), str("write_done"), str("transfer_id"), str("a\nb")}), "no plain text"},
      {map({str("req_id"), str("r"), std::string("\xb1") + "block_notify_list", "\x91\xff"}),
       "entry 0 is -1"},
  };
  for (const auto& [frame, why] : frames) {
    EXPECT_TRUE(names(refusal(frame), why)) << why << ": " << refusal(frame).to_string();
  }
}

TEST(NotifyMessageTest, EveryTruncationOfAMapIsRefused) {
  const auto bytes = *encode(sample_blocks());
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_notify_message(std::span(bytes).first(size)).ok()) << size;
  }
}

TEST(NotifyMessageTest, AnIdHasABound) {
  EXPECT_TRUE(encode(LegacyId{std::string(kMaxIdBytes, 'x')}).ok());
  EXPECT_EQ(encode(LegacyId{std::string(kMaxIdBytes + 1, 'x')}).status().reason(),
            Reason::kTooLarge);
  EXPECT_TRUE(encode(WriteDone{.transfer_id = std::string(kMaxIdBytes, 'x')}).ok());
  EXPECT_FALSE(encode(WriteDone{.transfer_id = std::string(kMaxIdBytes + 1, 'x')}).ok());
}

TEST(NotifyMessageTest, ABlockListHasABoundAndSoHasABlockId) {
  RemoteBlocks message = sample_blocks();
  message.block_ids.assign(kMaxBlocks, kMaxBlockId);
  EXPECT_TRUE(encode(message).ok());
  message.block_ids.push_back(1);
  EXPECT_TRUE(names(encode(message).status(), "block_notify_list"));
  message.block_ids = {kMaxBlockId + 1};
  EXPECT_TRUE(names(encode(message).status(), "block_notify_list"));
}

TEST(NotifyMessageTest, AFrameHasABound) {
  Bytes frame(kMaxNotifyBytes + 1, std::byte{0x80});
  EXPECT_EQ(decode_notify_message(frame).status().reason(), Reason::kTooLarge);
}

TEST(NotifyMessageTest, TheEntriesOfAFrameHaveABound) {
  const auto with = [](uint32_t entries) {
    std::string frame = "\x83" + str("type") + str("write_done") + str("transfer_id") + str("t") +
                        str("x") + "\xdd";
    for (int shift = 24; shift >= 0; shift -= 8) frame += static_cast<char>(entries >> shift);
    return frame + std::string(entries, '\0');
  };
  constexpr uint32_t kMost = (2 << 20) - 6;  // The keys and values of the map count too.
  EXPECT_TRUE(refusal(with(kMost)).ok()) << refusal(with(kMost)).to_string();
  EXPECT_TRUE(names(refusal(with(kMost + 1)), "too many entries"));
}

TEST(NotifyMessageTest, AStatusWithForeignTextIsSentAllTheSame) {
  const auto bytes = encode(
      WriteFailed{.transfer_id = "t", .extras = {.status = "line\n" + std::string(999, 'x')}});
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  const auto message = decode_notify_message(*bytes);
  EXPECT_EQ(std::get<WriteFailed>(*message).extras.status->substr(0, 6), "line?x");
  EXPECT_EQ(std::get<WriteFailed>(*message).extras.version, kMessageVersion);
}

TEST(HandshakeTest, IsByteForByteWhatVllmSends) {
  const AgentMetadata metadata = {.engine_id = "10.0.0.1:6301",
                                  .agent_metadata = {std::byte{1}, std::byte{2}},
                                  .kv_caches_base_addr = {0x1000, 0x2000},
                                  .num_blocks = 16,
                                  .block_len = 4096,
                                  .attn_backend_name = "X"};
  const auto golden = from_hex(
      "86a9656e67696e655f6964ad31302e302e302e313a36333031ae6167656e745f6d65746164617461c4020102b3"
      "6b765f6361636865735f626173655f6164647292cd1000cd2000aa6e756d5f626c6f636b7310a9626c6f636b5f"
      "6c656ecd1000b16174746e5f6261636b656e645f6e616d65a158");
  EXPECT_EQ(*encode(metadata), golden);
  EXPECT_EQ(*decode_agent_metadata(golden), metadata);

  const LayerMap layers = {{"model.layers.0", {{std::byte{0xaa}, std::byte{0xbb}}}}};
  const auto golden_layers = from_hex("81ae6d6f64656c2e6c61796572732e3091c402aabb");
  EXPECT_EQ(*encode(layers), golden_layers);
  EXPECT_EQ(*decode_layer_map(golden_layers), layers);
}

TEST(HandshakeTest, TheDescriptionTravelsAlong) {
  AgentMetadata metadata = {.engine_id = "e", .attn_backend_name = "X"};
  metadata.compat = {{"dtype", "bfloat16"}, {"model", "m"}};
  metadata.layer_num_blocks = {{"model.layers.0", 7}};
  const auto again = decode_agent_metadata(*encode(metadata));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ((*again).compat, metadata.compat);
  EXPECT_EQ((*again).layer_num_blocks, metadata.layer_num_blocks);
  EXPECT_EQ((*again).extras.version, kMessageVersion);
}

TEST(HandshakeTest, AMissingKeyIsNamed) {
  const AgentMetadata metadata = {.engine_id = "e", .attn_backend_name = "X"};
  const auto bytes = *encode(metadata);
  for (const std::string_view key : {"engine_id", "agent_metadata", "kv_caches_base_addr",
                                     "num_blocks", "block_len", "attn_backend_name"}) {
    auto renamed = bytes;
    const auto raw = std::as_bytes(std::span(key));
    const auto at = std::search(renamed.begin(), renamed.end(), raw.begin(), raw.end());
    ASSERT_NE(at, renamed.end()) << key;
    *at = std::byte{'x'};
    EXPECT_TRUE(
        names(decode_agent_metadata(renamed).status(), "`" + std::string(key) + "` is missing"));
  }
}

TEST(HandshakeTest, ALayerNeedsDescriptorsWithinBounds) {
  const auto with = [](size_t regions, size_t bytes) {
    return encode(LayerMap{{"l", std::vector<Bytes>(regions, Bytes(bytes))}});
  };
  EXPECT_TRUE(with(kMaxRegionsPerLayer, kMaxDescBytes).ok());
  EXPECT_FALSE(with(kMaxRegionsPerLayer + 1, 1).ok());
  EXPECT_FALSE(with(1, kMaxDescBytes + 1).ok());
  EXPECT_TRUE(names(with(0, 1).status(), "no memory descriptor"));
  EXPECT_TRUE(names(encode(LayerMap{{"a\nb", {Bytes(1)}}}).status(), "no name of a layer"));
  EXPECT_TRUE(names(encode(LayerMap{{"l", {Bytes(1)}}, {"l", {Bytes(1)}}}).status(), "twice"));
}

TEST(HandshakeTest, ARequestIsOneOfTwoWords) {
  EXPECT_EQ(*decode_handshake_request(from_text("get_meta_msg")), HandshakeRequest::kGetMetadata);
  EXPECT_EQ(*decode_handshake_request(from_text("pop_done_recv")), HandshakeRequest::kPopDoneRecv);
  EXPECT_EQ(decode_handshake_request(from_text("get_meta_ms")).status().reason(), Reason::kFrame);
  EXPECT_EQ(decode_handshake_request({}).status().reason(), Reason::kFrame);
}

TEST(HeartbeatTest, IsByteForByteWhatVllmSends) {
  const Heartbeat heartbeat = {.type = "P",
                               .http_address = "10.0.0.1:8000",
                               .zmq_address = "host:10.0.0.1,handshake:6301,notify:61005",
                               .dp_size = 1,
                               .tp_size = 8,
                               .transfer_mode = "WRITE"};
  const auto golden = from_hex(
      "86a474797065a150ac687474705f61646472657373ad31302e302e302e313a38303030ab7a6d715f6164647265"
      "7373d929686f73743a31302e302e302e312c68616e647368616b653a363330312c6e6f746966793a3631303035"
      "a764705f73697a6501a774705f73697a6508ad7472616e736665725f6d6f6465a55752495445");
  EXPECT_EQ(*encode(heartbeat), golden);
  EXPECT_EQ(*decode_heartbeat(golden), heartbeat);
}

TEST(HeartbeatTest, AHelloNeedsNothingElse) {
  const auto hello = decode_heartbeat(from_text(map({str("type"), str("HELLO")})));
  ASSERT_TRUE(hello.ok()) << hello.status().to_string();
  EXPECT_EQ(*hello, Heartbeat{.type = "HELLO"});
  const auto address = map({str("type"), str("HELLO"), str("http_address"), str("[::1]:80")});
  EXPECT_EQ(decode_heartbeat(from_text(address))->http_address, "[::1]:80");
  EXPECT_EQ(*encode(*hello), from_text(map({str("type"), str("HELLO")})));
  EXPECT_EQ(*encode(*decode_heartbeat(from_text(address))), from_text(address));
  const auto wrong = map({str("type"), str("HELLO"), str("http_address"), number(1)});
  EXPECT_TRUE(names(decode_heartbeat(from_text(wrong)).status(), "http_address"));
}

TEST(HeartbeatTest, AWrongFieldIsNamed) {
  const Heartbeat good = {.type = "D",
                          .http_address = "h:1",
                          .zmq_address = "z",
                          .dp_size = 1,
                          .tp_size = 1,
                          .transfer_mode = "READ"};
  ASSERT_TRUE(encode(good).ok());
  Heartbeat bad = good;
  bad.type = "Q";
  EXPECT_TRUE(names(encode(bad).status(), "`type`"));
  bad = good;
  bad.tp_size = 0;
  EXPECT_TRUE(names(encode(bad).status(), "`tp_size`"));
  bad = good;
  bad.transfer_mode = "PUSH";
  EXPECT_TRUE(names(encode(bad).status(), "`transfer_mode`"));
  bad = good;
  bad.zmq_address.clear();
  EXPECT_TRUE(names(encode(bad).status(), "`zmq_address`"));
}

}  // namespace
}  // namespace stagelink::moriio
