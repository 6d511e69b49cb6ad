#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "connector/kv/json_scanner.h"
#include "connector/kv/merge_plan.h"
#include "connector/kv/payload_header.h"
#include "connector/kv/payload_plan.h"

namespace stagelink::kv {
namespace {

using testing::HasSubstr;

std::string frame(const std::string& json, size_t data, int64_t length = -1) {
  std::string out(4, '\0');
  const auto n = static_cast<uint32_t>(length < 0 ? static_cast<int64_t>(json.size()) : length);
  for (int i = 0; i < 4; ++i) out[static_cast<size_t>(i)] = static_cast<char>(n >> (8 * (3 - i)));
  return out + json + std::string(data, 'x');
}

Result<PayloadHeader> decode(const std::string& payload, std::string_view id = {}) {
  return decode_header(std::as_bytes(std::span(payload)), payload.size(), id);
}

std::string header_of(const std::string& tensors, int layers = 2) {
  return fmt::format(R"({{"rid":"r","bids":[1,2],"meta":{{"a":[1,NaN]}},"td":[{}],"nl":{}}})",
                     tensors, layers);
}

const std::string kTwo = R"({"n":"key_cache_0","i":0,"d":"float16","s":[2,1,2],"o":0,"b":8},)"
                         R"({"n":"value_cache_0","i":0,"d":"float16","s":[2,1,2],"o":8,"b":8})";

TEST(KvHeaderTest, APayloadIsReadWithAllItSays) {
  auto header = decode(frame(header_of(kTwo + R"(,{"n":"key_cache_1","x":true})"), 16), "r");
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  EXPECT_EQ(header->request_id, "r");
  EXPECT_EQ(header->block_ids, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(header->metadata, R"({"a":[1,NaN]})");
  ASSERT_EQ(header->tensors.size(), 2U);
  EXPECT_TRUE(header->tensors[1].is_value);
  EXPECT_EQ(header->tensors[1].offset, 8U);
  EXPECT_EQ(header->tensors[1].shape, (std::vector<uint64_t>{2, 1, 2}));
}

struct Wrong {
  const char* name;
  std::string payload;
  const char* text;
};

std::string tensor(const std::string& fields) { return frame(header_of("{" + fields + "}"), 16); }

std::vector<Wrong> wrong_payloads() {
  const std::string key = R"("n":"key_cache_0","d":"int8","s":[16],)";
  return {
      {"short", std::string(3, '\0'), "missing 4-byte header length"},
      {"length", frame("{}", 0, 3), "header_len=3 exceeds buffer size=6"},
      {"no json", frame("x", 0), "expected an object"},
      {"cut off", frame(R"({"rid":"r")", 0), "expected a comma"},
      {"two values", frame("{} {}", 0), "more than one value"},
      {"no rid", frame(R"({"bids":[]})", 0), "no `rid`"},
      {"field twice", frame(R"({"rid":"r","rid":"r"})", 0), "`rid` twice"},
      {"surrogate", frame(R"({"rid":"\ud800"})", 0), "half a surrogate pair"},
      {"utf-8", frame("{\"rid\":\"\xff\"}", 0), "no UTF-8"},
      {"depth", frame("{\"x\":" + std::string(40, '['), 0), "nested too deeply"},
      {"meta", frame(R"({"meta":3})", 0), "`meta` is no object"},
      {"layers", frame(header_of("", 4097), 0), "4097 layers, the limit is 4096"},
      {"layer", tensor(key + R"("i":2,"o":0,"b":16)"), "Invalid layer index in KV payload: 2"},
      {"text layer", tensor(key + R"("i":"0","o":0,"b":16)"), "Invalid layer index in KV payload"},
      {"name", tensor(R"("n":"cache_0","i":0)"), "Invalid KV tensor name in payload: cache_0"},
      {"name and layer", tensor(key + R"("i":1,"o":0,"b":16)"), "1 of key_cache_0"},
      {"dtype", tensor(R"("n":"key_cache_0","d":"load","s":[1],"o":0,"b":1)"),
       "Unsupported dtype in KV payload: load"},
      {"no dtype", tensor(R"("n":"key_cache_0","s":[1],"o":0,"b":1)"), "Unsupported dtype"},
      {"span", tensor(key + R"("o":1,"b":16)"),
       "tensor span for key_cache_0: offset=1, bytes=16, tensor_data_bytes=16"},
      {"negative", tensor(key + R"("o":-1,"b":16)"), "tensor span for key_cache_0: offset=-1"},
      {"huge", tensor(key + R"("o":9223372036854775807,"b":16)"), "tensor span"},
      {"size", tensor(R"("n":"key_cache_0","d":"int16","s":[16],"o":0,"b":16)"),
       "16 bytes, which [16] of int16 has not"},
      {"overflow",
       tensor(R"("n":"key_cache_0","d":"int8","s":[4294967296,4294967296],"o":0,"b":0)"),
       "has not"},
      {"no shape", tensor(R"("n":"key_cache_0","d":"int8","o":0,"b":16)"), "lacks its shape"},
      {"rank", tensor(R"("n":"key_cache_0","d":"int8","s":[1,1,1,1,1,1,1,1,1],"o":0,"b":1)"),
       "a shape that is none"},
      {"twice", frame(header_of(kTwo + "," + kTwo), 16), "key_cache_0 is there twice"},
      {"overlap",
       frame(header_of(R"({"n":"key_cache_0","d":"int8","s":[9],"o":0,"b":9},)"
                       R"({"n":"value_cache_0","d":"int8","s":[8],"o":8,"b":8})"),
             16),
       "value_cache_0 begins at 8, inside another tensor"},
      {"gap", frame(header_of(R"({"n":"key_cache_0","d":"int8","s":[8],"o":64,"b":8})"), 72),
       "64 bytes before key_cache_0"},
      {"trailing", frame(header_of(kTwo), 17), "1 trailing bytes"},
      {"bids", frame(R"({"bids":[1.5]})", 0), "whole number"},
  };
}

TEST(KvHeaderTest, WhateverIsWrongIsNamed) {
  for (const Wrong& wrong : wrong_payloads()) {
    auto header = decode(wrong.payload);
    ASSERT_FALSE(header.ok()) << wrong.name;
    EXPECT_THAT(header.status().to_string(), HasSubstr(wrong.text)) << wrong.name;
    EXPECT_EQ(header.status().reason(), Reason::kFrame) << wrong.name;
  }
}

TEST(KvHeaderTest, EveryBoundHoldsOnItsOtherSideToo) {
  EXPECT_TRUE(decode(frame(header_of("", 4096), 0)).ok());
  EXPECT_TRUE(
      decode(frame(header_of(R"({"n":"key_cache_0","d":"int8","s":[8],"o":63,"b":8})"), 71)).ok());
  EXPECT_TRUE(decode(frame(header_of(R"({"n":"key_cache_0","i":null,"d":"int8",)"
                                     R"("s":[1,1,1,1,1,1,1,1],"o":0,"b":1})"),
                           1))
                  .ok());
  const std::string deep = std::string(31, '[') + std::string(31, ']');
  EXPECT_TRUE(
      decode(frame(R"({"rid":"r","bids":[],"meta":{"x":)" + deep + R"(},"td":[],"nl":0})", 0))
          .ok());
}

TEST(KvHeaderTest, APayloadOfAnotherRequestIsRefused) {
  auto header = decode(frame(header_of(kTwo), 16), "other");
  EXPECT_THAT(header.status().to_string(), HasSubstr("of request r, where that of other"));
}

TEST(KvHeaderTest, EveryTruncationIsRefused) {
  const std::string whole = frame(header_of(kTwo), 16);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(decode(whole.substr(0, size)).ok()) << size;
  }
}

TEST(KvHeaderTest, IdsComeBackAsTheyWere) {
  PayloadHeader header;
  header.request_id = "a\"\\\n\x7f\xc3\xa9\xf0\x9f\x99\x82";
  auto text = encode_header(header);
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr(R"("rid":"a\"\\\n\u007f\u00e9\ud83d\ude42")"));
  EXPECT_EQ(text->size() % kTensorAlign, 0U);
  auto back = decode(*text, header.request_id);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->request_id, header.request_id);
  header.request_id = "\xff";
  EXPECT_EQ(encode_header(header).status().reason(), Reason::kInvalidArgument);
}

// A cache [2, blocks, 4 tokens, 4 heads, 2] of int16, whose elements count up.
class Cache {
 public:
  static constexpr int64_t kTokens = 4;
  static constexpr int64_t kHeads = 4;
  static constexpr int64_t kDim = 2;

  explicit Cache(int64_t blocks, int16_t first = 0) : blocks_(blocks) {
    values_.resize(static_cast<size_t>(2 * blocks * kTokens * kHeads * kDim));
    std::iota(values_.begin(), values_.end(), first);
  }
  StridedTensor tensor() const {
    return {reinterpret_cast<const std::byte*>(values_.data()),
            find_kv_dtype("int16"),
            {2, blocks_, kTokens, kHeads, kDim},
            {2 * blocks_ * kTokens * kHeads * kDim, 2 * kTokens * kHeads * kDim, 2 * kHeads * kDim,
             2 * kDim, 2}};
  }
  int16_t at(bool value, int64_t block, int64_t token, int64_t head, int64_t dim) const {
    const int64_t plane = value ? 1 : 0;
    return values_[static_cast<size_t>(
        (((plane * blocks_ + block) * kTokens + token) * kHeads + head) * kDim + dim)];
  }

 private:
  int64_t blocks_;
  std::vector<int16_t> values_;
};

LayerPlanes layer_of(const StridedTensor& tensor) {
  auto planes = planes_of(tensor, {Cache::kTokens, false, block_layout::Layout::kAuto});
  EXPECT_TRUE(planes.ok()) << planes.status().to_string();
  return *std::move(planes);
}

std::string written(const PayloadPlan& plan) {
  std::string out(plan.size(), '?');
  EXPECT_TRUE(plan.write(std::as_writable_bytes(std::span(out))).ok());
  return out;
}

TEST(KvPlanTest, BlocksAreGatheredInTheirOrderTrimmedAndAligned) {
  const Cache cache(6);
  const std::vector<LayerPlanes> layers = {layer_of(cache.tensor()), {}, layer_of(cache.tensor())};
  const std::vector<int64_t> blocks = {4, 5, 1, 3};  // The last one is beyond the sequence.
  auto plan = PayloadPlan::create(layers, {"r", blocks, 10, R"({"x":1})", {}, kTensorAlign});
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const std::string payload = written(*plan);
  auto header = decode(payload, "r");
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  EXPECT_EQ(header->data_offset % kTensorAlign, 0U);
  ASSERT_EQ(header->tensors.size(), 4U);
  EXPECT_EQ(header->num_layers, 3U);
  for (const PayloadTensor& tensor : header->tensors) {
    EXPECT_EQ(tensor.offset % kTensorAlign, 0U);
    ASSERT_EQ(tensor.shape, (std::vector<uint64_t>{10, 4, 2}));
    size_t at = header->data_offset + tensor.offset;
    for (int64_t token = 0; token < 10; ++token) {
      for (int64_t element = 0; element < 8; ++element, at += 2) {
        int16_t got = 0;
        std::memcpy(&got, payload.data() + at, 2);
        ASSERT_EQ(got, cache.at(tensor.is_value, blocks[static_cast<size_t>(token / 4)], token % 4,
                                element / 2, element % 2))
            << tensor.name() << " " << token;
      }
    }
  }
}

TEST(KvPlanTest, WhatLiesInPlaceIsTheSameBytes) {
  const Cache cache(6);
  const std::vector<LayerPlanes> layers = {layer_of(cache.tensor())};
  const std::vector<int64_t> blocks = {4, 5, 1};
  auto plan = PayloadPlan::create(layers, {"r", blocks, 10, "{}", {}, kTensorAlign});
  ASSERT_TRUE(plan.ok());
  auto runs = plan->runs(16);
  ASSERT_TRUE(runs.ok()) << runs.status().to_string();
  EXPECT_LE(runs->size(), 7U);  // Header, two runs for each of two tensors, padding.
  std::string joined;
  for (const auto run : *runs) joined.append(reinterpret_cast<const char*>(run.data()), run.size());
  EXPECT_EQ(joined, written(*plan));
  EXPECT_TRUE(plan->runs(runs->size()).ok());
  EXPECT_EQ(plan->runs(runs->size() - 1).status().reason(), Reason::kTooManyRanges);
}

TEST(KvPlanTest, APayloadMayBeWrittenInPieces) {
  const Cache cache(6);
  const std::vector<LayerPlanes> layers = {layer_of(cache.tensor())};
  const std::vector<int64_t> blocks = {4, 5, 1};
  auto plan = PayloadPlan::create(layers, {"r", blocks, 10, "{}", {1, 1, 2}, kTensorAlign});
  ASSERT_TRUE(plan.ok());
  std::string first(101, '?');
  std::string second(plan->size() - 101, '?');
  const std::vector<std::span<std::byte>> pieces = {std::as_writable_bytes(std::span(first)),
                                                    std::as_writable_bytes(std::span(second))};
  ASSERT_TRUE(plan->write(pieces).ok());
  EXPECT_EQ(first + second, written(*plan));
  EXPECT_EQ(plan->write(std::as_writable_bytes(std::span(first))).reason(), Reason::kOutOfBounds);
}

TEST(KvPlanTest, CopiesOfSomeBlocksAreSentUnderTheirIds) {
  const Cache cache(6);
  const std::vector<LayerPlanes> layers = {layer_of(cache.tensor())};
  const std::vector<int64_t> there = {4, 1};
  const std::vector<int64_t> ids = {400, 100};
  PayloadRequest request{"r", ids, 8};
  request.positions = there;
  auto plan = PayloadPlan::create(layers, request);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const std::string payload = written(*plan);
  EXPECT_EQ(decode(payload)->block_ids, ids);
  auto direct = PayloadPlan::create(layers, {"r", there, 8});
  EXPECT_EQ(payload.substr(plan->data_offset()), written(*direct).substr(direct->data_offset()));
  request.positions = std::span(there).first(1);
  EXPECT_EQ(PayloadPlan::create(layers, request).status().reason(), Reason::kOutOfBounds);
}

TEST(KvPlanTest, WhatCannotBeSentIsNamed) {
  const Cache cache(6);
  const std::vector<LayerPlanes> layers = {layer_of(cache.tensor())};
  const std::vector<int64_t> blocks = {4, 6};
  const auto message = [&](const PayloadRequest& request) {
    return PayloadPlan::create(layers, request).status().to_string();
  };
  EXPECT_THAT(message({"r", blocks, 8}), HasSubstr("block 6 is not one of the 6 of key_cache_0"));
  EXPECT_EQ(message({"r", blocks, 4}), "ok");  // The bad one is beyond the sequence.
  EXPECT_THAT(message({"r", blocks, 9}), HasSubstr("seq_len 9 needs 3 blocks of 4 tokens"));
  EXPECT_THAT(message({"r", blocks, 0}), HasSubstr("seq_len is 0"));
  EXPECT_THAT(message({"r", blocks, 4, "{}", {0, 1, 3}}),
              HasSubstr("heads_in_shard=4, num_slices=3"));
  EXPECT_THAT(PayloadPlan::create({}, {"r", blocks, 4}).status().to_string(),
              HasSubstr("0 layers"));
  const std::vector<LayerPlanes> none(2);
  EXPECT_THAT(PayloadPlan::create(none, {"r", blocks, 4}).status().to_string(),
              HasSubstr("no layer has a cache"));
}

TEST(KvLayerTest, LayoutsAreFoundOrRefusedAndNeverGuessed) {
  using block_layout::Layout;
  const auto shape = [](std::vector<int64_t> extents) {
    static const std::vector<std::byte> somewhere(4096);
    StridedTensor out{somewhere.data(), find_kv_dtype("int8"), extents, extents};
    int64_t stride = 1;
    for (size_t at = extents.size(); at-- > 0; stride *= extents[at]) out.strides[at] = stride;
    return out;
  };
  const auto read = [&](std::vector<int64_t> extents, LayerReading reading = {4}) {
    return planes_of(shape(std::move(extents)), reading);
  };
  EXPECT_EQ(read({2, 9, 4, 3, 5})->keys->shape, (std::vector<int64_t>{9, 4, 3, 5}));
  EXPECT_EQ(read({9, 2, 4, 3, 5})->values->shape, (std::vector<int64_t>{9, 4, 3, 5}));
  auto rows = read({9, 3, 4, 10});
  EXPECT_EQ(rows->keys->shape, (std::vector<int64_t>{9, 4, 3, 5}));
  EXPECT_EQ(rows->values->strides, (std::vector<int64_t>{120, 10, 40, 1}));
  EXPECT_EQ(rows->values->first - rows->keys->first, 5);
  EXPECT_EQ(read({9, 2, 4, 10})->keys->shape, (std::vector<int64_t>{9, 4, 2, 5}));
  EXPECT_FALSE(read({9, 4, 5}, {4, true})->values.has_value());
  EXPECT_THAT(read({2, 2, 4, 3, 5}).status().to_string(),
              HasSubstr("can be read as kv_first and as interleaved; name the layout"));
  EXPECT_TRUE(read({2, 2, 4, 3, 5}, {4, false, Layout::kInterleaved}).ok());
  EXPECT_THAT(read({9, 3, 4, 3, 5}).status().to_string(), HasSubstr("it is none of"));
  EXPECT_THAT(read({2, 9, 8, 3, 5}).status().to_string(), HasSubstr("blocks of 4 tokens"));
  EXPECT_THAT(read({9, 3, 4, 10}, {4, false, Layout::kKvFirst}).status().to_string(),
              HasSubstr("it is not kv_first"));
  EXPECT_THAT(read({9, 8, 5}, {4, true}).status().to_string(), HasSubstr("8 tokens"));
}

TEST(KvMergeTest, WhateverTheSizesEachReceiverHasItsHeadsOnce) {
  // Eight heads in all; each sender's cache has its part of them.
  constexpr uint32_t kAll = 8;
  for (const auto& [from_tp, to_tp] :
       {std::pair(1U, 1U), std::pair(4U, 4U), std::pair(4U, 2U), std::pair(2U, 4U),
        std::pair(1U, 4U), std::pair(4U, 1U), std::pair(8U, 2U)}) {
    auto map = RankMap::create({from_tp, to_tp, kAll, false});
    ASSERT_TRUE(map.ok());
    const uint32_t held = kAll / from_tp;
    // Element (token, head) of the model, by its number.
    std::vector<std::vector<int16_t>> caches(from_tp);
    for (uint32_t rank = 0; rank < from_tp; ++rank) {
      for (int plane = 0; plane < 2; ++plane) {
        for (int token = 0; token < 4; ++token) {
          for (uint32_t head = 0; head < held; ++head) {
            caches[rank].push_back(
                static_cast<int16_t>(plane * 1000 + token * 100 + int(rank * held + head)));
          }
        }
      }
    }
    for (uint32_t to = 0; to < to_tp; ++to) {
      std::vector<std::string> payloads;
      std::vector<PayloadHeader> headers;
      std::vector<MergePart> parts;
      auto routes = map->gets(to);
      headers.reserve(routes->size());
      for (const RankRoute& route : *routes) {
        const auto heads = int64_t{held};
        const StridedTensor tensor{reinterpret_cast<const std::byte*>(caches[route.rank].data()),
                                   find_kv_dtype("int16"),
                                   {2, 1, 4, heads, 1},
                                   {8 * heads, 8 * heads, 2 * heads, 2, 2}};
        const std::vector<LayerPlanes> layers = {layer_of(tensor)};
        const std::vector<int64_t> blocks = {0};
        auto plan = PayloadPlan::create(layers, {"r", blocks, 3, "{}", route.theirs});
        ASSERT_TRUE(plan.ok()) << plan.status().to_string();
        payloads.push_back(written(*plan));
        headers.push_back(*decode(payloads.back()));
        parts.push_back({&headers.back(), route, true});
      }
      auto merge = MergePlan::create(parts, kAll / to_tp);
      ASSERT_TRUE(merge.ok()) << merge.status().to_string();
      std::string memory(merge->bytes(), '\0');
      for (size_t at = 0; at < parts.size(); ++at) {
        EXPECT_EQ(merge->dense(at), parts.size() == 1);
        ASSERT_TRUE(merge
                        ->place(at, std::as_bytes(std::span(payloads[at])),
                                std::as_writable_bytes(std::span(memory)))
                        .ok());
      }
      for (const PayloadTensor& tensor : merge->tensors()) {
        ASSERT_EQ(tensor.shape, (std::vector<uint64_t>{3, kAll / to_tp, 1}));
        std::vector<int16_t> got(tensor.bytes / 2);
        std::memcpy(got.data(), memory.data() + tensor.offset, tensor.bytes);
        for (size_t at = 0; at < got.size(); ++at) {
          const size_t heads = kAll / to_tp;
          EXPECT_EQ(got[at], (tensor.is_value ? 1000 : 0) + int(at / heads) * 100 +
                                 int(to * heads + at % heads))
              << from_tp << "->" << to_tp << " rank " << to;
        }
      }
    }
  }
}

TEST(KvMergeTest, PayloadsThatDoNotFitOneAnotherAreRefusedByName) {
  const auto parse = [](const std::string& tensors) {
    return *decode(frame(header_of(tensors), 8));
  };
  const auto a = parse(R"({"n":"key_cache_0","d":"int8","s":[2,2,2],"o":0,"b":8})");
  const auto b = parse(R"({"n":"key_cache_0","d":"int8","s":[1,4,2],"o":0,"b":8})");
  const auto c = parse(R"({"n":"key_cache_1","d":"int8","s":[2,2,2],"o":0,"b":8})");
  const auto merged = [](const PayloadHeader& first, const PayloadHeader& second, uint64_t heads) {
    const std::vector<MergePart> parts = {{&first, {0, {0, 1, 2}, {0, 1, 1}}, true},
                                          {&second, {3, {1, 1, 2}, {0, 1, 1}}, true}};
    return MergePlan::create(parts, heads).status().to_string();
  };
  EXPECT_EQ(merged(a, a, 4), "ok");
  EXPECT_THAT(merged(a, a, 5), HasSubstr("comes to 4 heads, this rank has 5"));
  EXPECT_THAT(merged(a, b, 0), HasSubstr("sender rank 3: key_cache_0 of int8 [1, 4, 2]"));
  EXPECT_THAT(merged(a, c, 0), HasSubstr("key_cache_1"));
}

TEST(KvMergeTest, OfAWholeShardTheShareIsTaken) {
  const std::string payload =
      frame(header_of(R"({"n":"key_cache_0","d":"int8","s":[2,4,1],"o":0,"b":8})"), 0) + "abcdefgh";
  auto header = decode(payload);
  ASSERT_TRUE(header.ok());
  const std::vector<MergePart> parts = {{&*header, {0, {0, 1, 1}, {1, 1, 2}}, false}};
  auto plan = MergePlan::create(parts, 2);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  std::string memory(plan->bytes(), '\0');
  ASSERT_TRUE(
      plan->place(0, std::as_bytes(std::span(payload)), std::as_writable_bytes(std::span(memory)))
          .ok());
  EXPECT_EQ(memory, "cdgh");
}

TEST(KvMergeTest, WhoseShareAPayloadIsStandsInItsMetadata) {
  const auto sliced = [](std::string metadata) {
    PayloadHeader header;
    header.metadata = std::move(metadata);
    return sliced_by_sender(header, 2);
  };
  EXPECT_FALSE(*sliced("{}"));
  EXPECT_FALSE(*sliced(R"({"tp_head_slice":{"applied":false,"target_rank":1}})"));
  EXPECT_FALSE(*sliced(R"({"tp_head_slice":null})"));
  EXPECT_TRUE(*sliced(R"({"a":[{}],"tp_head_slice":{"side":"sender","applied":true,)"
                      R"("target_rank":2,"x":{}},"b":1})"));
  EXPECT_THAT(sliced(R"({"tp_head_slice":{"applied":true,"target_rank":1}})").status().to_string(),
              HasSubstr("sliced for rank 1, this is rank 2"));
  EXPECT_EQ(sliced("{").status().reason(), Reason::kFrame);
}

TEST(JsonScannerTest, TextsAreTakenOrRefusedAsPythonDoes) {
  const auto whole = [](std::string_view text) {
    JsonScanner scanner(text);
    std::string_view raw;
    return scanner.skip(raw) && scanner.finished();
  };
  for (const char* text : {"0", "-0.5e+7", "NaN", "-Infinity", " [1, 2 , {\"a\":null}]\n",
                           "\"\\u00e9\"", "true", "{}", "[]"}) {
    EXPECT_TRUE(whole(text)) << text;
  }
  for (const char* text : {"", "01", "1.", "+1", "[1,]", "{\"a\":1,}", "{a:1}", "tru", "\"\\x\"",
                           "\"\t\"", "[1 2]", "1 2", "nul", "-", "[", "\"\\u12g4\""}) {
    EXPECT_FALSE(whole(text)) << text;
  }
}

}  // namespace
}  // namespace stagelink::kv
