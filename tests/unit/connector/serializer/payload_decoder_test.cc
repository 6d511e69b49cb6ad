#include "connector/serializer/payload_decoder.h"

#include <gtest/gtest.h>

#include "connector/serializer/dtype.h"
#include "unit/connector/serializer/text_sink.h"

namespace stagelink::serializer {
namespace {

struct Vector {
  const char* hex;
  const char* text;
};

std::string many(std::string_view part, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += part;
  return out;
}

// A text as hex, with its MessagePack head.
std::string packed(std::string_view text) {
  return fmt::format("{:02x}", 0xa0 + text.size()) +
         hex_of(std::as_bytes(std::span(text.data(), text.size())));
}

TEST(PayloadDecoderTest, EveryLegalWidthOfEveryTokenIsRead) {
  constexpr Vector kVectors[] = {
      {"00", "0"},
      {"7f", "127"},
      {"e0", "-32"},
      {"ff", "-1"},
      {"c0", "nil"},
      {"c2", "false"},
      {"c3", "true"},
      {"cc 05", "5"},
      {"cd 0005", "5"},
      {"ce 00000005", "5"},
      {"cf 0000000000000005", "5"},
      {"cf 7fffffffffffffff", "9223372036854775807"},
      {"cf 8000000000000000", "9223372036854775808u"},
      {"d0 ff", "-1"},
      {"d1 ffff", "-1"},
      {"d2 ffffffff", "-1"},
      {"d3 ffffffffffffffff", "-1"},
      {"d3 8000000000000000", "-9223372036854775808"},
      {"d0 05", "5"},
      {"a1 61", "\"a\""},
      {"d9 01 61", "\"a\""},
      {"da 0001 61", "\"a\""},
      {"db 00000001 61", "\"a\""},
      {"c4 01 ff", "bytes ff"},
      {"c5 0001 ff", "bytes ff"},
      {"c6 00000001 ff", "bytes ff"},
      {"91 01", "[1]"},
      {"dc 0001 01", "[1]"},
      {"dd 00000001 01", "[1]"},
      {"81 01 02", "{1 2}"},
      {"de 0001 01 02", "{1 2}"},
      {"df 00000001 01 02", "{1 2}"},
      {"90", "[]"},
      {"80", "{}"},
      {"c4 00", "bytes "},
      {"92 91 c0 80", "[[nil] {}]"},
      {"d6 ff 00000007", "time 7 0"},
      {"d7 ff 0000000c 00000007", "time 7 3"},
      {"c7 0c ff 00000003 ffffffffffffffff", "time -1 3"},
      {"81 92 01 91 02 c0", "{(1 (2)) nil}"},  // A list as a key.
  };
  for (const Vector& vector : kVectors)
    EXPECT_EQ(read(from_hex(vector.hex)), vector.text) << vector.hex;
}

TEST(PayloadDecoderTest, ArraysAreReadAsTheSpecificationWritesThem) {
  const std::string tensor = "84 " + packed("__tensor__") + "c3" + packed("dtype") +
                             packed("int16") + packed("shape") + "92 02 02" + packed("data") +
                             "c4 08 0100 0200 0300 0400";
  ASSERT_EQ(from_hex(tensor).size(), 49u);
  EXPECT_EQ(read(from_hex(tensor)), "tensor int16 [2,2] 0100020003000400");
  const std::string other_order = "84 " + packed("data") + "c5 0002 0500" + packed("shape") +
                                  "dc 0001 01" + packed("dtype") + packed("<i2") +
                                  packed("__ndarray__") + "c3";
  EXPECT_EQ(read(from_hex(other_order)), "array <i2 [1] 0500");
  const std::string image = "84" + packed("__pil_image__") + "c3" + packed("mode") + packed("RGB") +
                            packed("shape") + "93 01 01 03" + packed("data") + "c4 03 010203";
  EXPECT_EQ(read(from_hex(image)), "image |u1RGB [1,1,3] 010203");
  const std::string empty = "84" + packed("__tensor__") + "c3" + packed("dtype") +
                            packed("float32") + packed("shape") + "92 00 03" + packed("data") +
                            "c4 00";
  EXPECT_EQ(read(from_hex(empty)), "tensor float32 [0,3] ");
  const std::string flag = "84" + packed("__tensor__") + "c3" + packed("dtype") + packed("bool") +
                           packed("shape") + "90" + packed("data") + "c4 01 01";
  ASSERT_EQ(from_hex(flag).size(), 39u);
  EXPECT_EQ(read(from_hex(flag)), "tensor bool [] 01");
}

TEST(PayloadDecoderTest, AMapThatIsNotQuiteAnArrayIsAMap) {
  const std::string with = packed("__tensor__");
  EXPECT_EQ(read(from_hex("81" + with + "c3")), "{\"__tensor__\" true}");
  EXPECT_EQ(read(from_hex("84" + with + "c3 0101 0202 0303")), "{\"__tensor__\" true 1 1 2 2 3 3}");
  const std::string rest = packed("dtype") + packed("bool") + packed("shape") + "90";
  EXPECT_EQ(read(from_hex("84" + with + "c2" + rest + packed("data") + "c4 01 01")),
            "{\"__tensor__\" false \"dtype\" \"bool\" \"shape\" [] \"data\" bytes 01}");
  EXPECT_EQ(read(from_hex("84" + with + "c3" + rest + packed("data") + "a1 61")),
            "{\"__tensor__\" true \"dtype\" \"bool\" \"shape\" [] \"data\" \"a\"}");
}

TEST(PayloadDecoderTest, AnArrayWhoseShapeDoesNotFitIsCorrupt) {
  const auto tensor = [](const std::string& dtype, const std::string& shape, const char* data) {
    return read(from_hex("84" + packed("__tensor__") + "c3" + packed("dtype") + packed(dtype) +
                         packed("shape") + shape + packed("data") + data));
  };
  const std::string kCorrupt = "frame (corrupt): payload: ";
  EXPECT_EQ(tensor("int16", "91 01", "c4 02 0000"), "tensor int16 [1] 0000");
  EXPECT_EQ(tensor("int16", "91 01", "c4 01 00"),
            kCorrupt + "an array of 1 bytes, its shape says 2");
  EXPECT_EQ(tensor("int16", "91 02", "c4 00"), kCorrupt + "an array of 0 bytes, its shape says 4");
  EXPECT_EQ(tensor("int16", "91 ff", "c4 00"),
            kCorrupt + "an array with a negative or immense extent");
  EXPECT_EQ(tensor("__class__", "91 01", "c4 01 00"),
            kCorrupt + "elements of type `__class__` are not known");
  EXPECT_EQ(tensor("<i2", "91 01", "c4 02 0000"),
            kCorrupt + "elements of type `<i2` are not known");
  EXPECT_EQ(tensor("int16", "92 cf4000000000000000 02", "c4 00"),
            kCorrupt + "an array that is larger than any memory");
  EXPECT_EQ(tensor("int16", "92 cf4000000000000000 00", "c4 00"),
            "tensor int16 [4611686018427387904,0] ");
}

TEST(PayloadDecoderTest, ATextOfAnArrayIsMadeOfCharacters) {
  const auto texts = [](const char* dtype, const char* data) {
    return read(from_hex("84" + packed("__ndarray__") + "c3" + packed("dtype") + packed(dtype) +
                         packed("shape") + "9101" + packed("data") + "c404" + data));
  };
  EXPECT_EQ(texts("<U1", "ffff1000"), "array <U1 [1] ffff1000");
  EXPECT_EQ(texts(">U1", "0010ffff"), "array >U1 [1] 0010ffff");
  for (const std::string& bad : {texts("<U1", "00001100"), texts(">U1", "00110000")}) {
    EXPECT_EQ(bad, "frame (corrupt): payload: an array of texts with what is no character");
  }
}

TEST(PayloadDecoderTest, WhatIsCutOffOrClaimsTooMuchIsCorrupt) {
  for (const char* hex : {"",
                          "c1 01",
                          "92",
                          "92 00",
                          "81 01",
                          "d9",
                          "d9 05 61",
                          "c4 02 00",
                          "cd 00",
                          "ca 0000",
                          "cb 00",
                          "dd ffffffff",
                          "df ffffffff",
                          "dc 0002 00",
                          "92 dd ffffff00 00",
                          "c6 ffffffff 00",
                          "c7 03 05 61",
                          "d6 01 00000000",
                          "d5 ff 0000",
                          "d7 ff ffffffff ffffffff",
                          "c0 c0",
                          "81 80 01",
                          "81 91 80 01",
                          "d4 03 00 90"}) {
    EXPECT_EQ(read(from_hex(hex)).substr(0, 15), "frame (corrupt)") << hex;
  }
}

TEST(PayloadDecoderTest, DepthIsBounded) {
  const auto nested = [](size_t depth) { return read(from_hex(many("91", depth) + "c0")); };
  EXPECT_EQ(nested(kMaxDepth), many("[", kMaxDepth) + "nil" + many("]", kMaxDepth));
  EXPECT_EQ(nested(kMaxDepth + 1), "frame (corrupt): payload: it is nested deeper than 512");
}

TEST(PayloadDecoderTest, EveryPrefixOfAFrameIsCorruptAndNeverMoreThanRead) {
  const auto frame = from_hex("83 a161 92 01 cb 3ff8000000000000 a162 84" + packed("__tensor__") +
                              "c3" + packed("dtype") + packed("bool") + packed("shape") + "9103" +
                              packed("data") + "c403 010001 a163 d9 02 6161");
  EXPECT_EQ(read(frame).substr(0, 1), "{");
  for (size_t size = 0; size < frame.size(); ++size) {
    // A copy of its own, so that a sanitizer sees every byte read beyond it.
    const std::vector<std::byte> cut(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_EQ(read(cut).substr(0, 15), "frame (corrupt)") << size;
  }
}

TEST(PayloadDecoderTest, ASinkThatRefusesEndsTheDecoding) {
  TextSink sink;
  sink.stop_at = "2";
  const Status status = decode_payload(from_hex("93 01 02 03"), sink);
  EXPECT_EQ(status.reason(), Reason::kCancelled);
  EXPECT_EQ(sink.out, "[1 2");
}

TEST(DtypeTest, NumpysOwnTypesHaveTheirSizesAndNoOthersAre) {
  struct Case {
    const char* name;
    uint64_t bytes;
  };
  constexpr Case kKnown[] = {{"<f4", 4},
                             {">i2", 2},
                             {"|b1", 1},
                             {"<f16", 16},
                             {"<c32", 32},
                             {"|S5", 5},
                             {"<U3", 12},
                             {"<M8[ns]", 8},
                             {"<m8", 8},
                             {"<M8[25us]", 8},
                             {"<U4294967295", 17'179'869'180}};
  for (const Case& known : kKnown)
    EXPECT_EQ(numpy_item_bytes(known.name), known.bytes) << known.name;
  for (const char* unknown :
       {"", "f4", "<f", "<f3", "|O8", "<V2", "<i4,<i4", "<M4[ns]", "<M8[xx]", "<M8[", "<i-4", "=i4",
        "<U4294967296", "<b2", "<i99999999999999999999", "<f4 "}) {
    EXPECT_EQ(numpy_item_bytes(unknown), std::nullopt) << unknown;
  }
}

TEST(DtypeTest, EveryNameOfTheTableIsFound) {
  for (const Dtype& dtype : all_dtypes()) {
    EXPECT_EQ(find_dtype(dtype.name), &dtype);
    if (dtype.numpy.empty()) continue;
    EXPECT_EQ(numpy_item_bytes(dtype.numpy), dtype.bytes) << dtype.name;
  }
  EXPECT_EQ(find_dtype("float"), nullptr);
  EXPECT_EQ(find_dtype(""), nullptr);
}

}  // namespace
}  // namespace stagelink::serializer
