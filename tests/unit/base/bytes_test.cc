#include "base/bytes.h"

#include <gtest/gtest.h>

namespace stagelink {
namespace {

TEST(BytesTest, FieldsAreLittleEndianAndRoundTrip) {
  ByteWriter out;
  out.put<uint16_t>(0x0102);
  out.put<uint64_t>(0x1122334455667788);
  out.put_string("name");
  const auto bytes = out.take();
  ASSERT_EQ(bytes.size(), 2U + 8U + 2U + 4U);
  EXPECT_EQ(bytes[0], std::byte{0x02});
  EXPECT_EQ(bytes[2], std::byte{0x88});

  ByteReader in(bytes);
  EXPECT_EQ(in.get<uint16_t>(), 0x0102);
  EXPECT_EQ(in.get<uint64_t>(), 0x1122334455667788U);
  EXPECT_EQ(in.get_string(), "name");
  EXPECT_TRUE(in.done());
}

TEST(BytesTest, ReadingToTheLastByteWorksAndOneMoreFails) {
  const std::vector<std::byte> bytes(4, std::byte{1});
  ByteReader in(bytes);
  EXPECT_EQ(in.get<uint32_t>(), 0x01010101U);
  EXPECT_TRUE(in.done());
  EXPECT_EQ(in.get<uint8_t>(), 0);
  EXPECT_FALSE(in.ok());
  EXPECT_FALSE(in.done());
}

TEST(BytesTest, AfterAFailureEveryReadIsZero) {
  const std::vector<std::byte> bytes(4, std::byte{1});
  ByteReader in(bytes);
  EXPECT_EQ(in.get<uint64_t>(), 0U);
  EXPECT_EQ(in.get<uint8_t>(), 0);
  EXPECT_FALSE(in.ok());
}

TEST(BytesTest, AStringLongerThanTheInputFails) {
  ByteWriter out;
  out.put<uint16_t>(5);
  out.put_bytes(std::vector<std::byte>(4));
  const auto bytes = out.take();
  ByteReader in(bytes);
  EXPECT_EQ(in.get_string(), "");
  EXPECT_FALSE(in.ok());
}

TEST(BytesTest, LeftoverBytesAreNotDone) {
  const std::vector<std::byte> bytes(3);
  ByteReader in(bytes);
  in.get<uint16_t>();
  EXPECT_TRUE(in.ok());
  EXPECT_FALSE(in.done());
  EXPECT_EQ(in.left(), 1U);
}

TEST(BytesTest, ACallerCanFailTheReader) {
  const std::vector<std::byte> bytes(3);
  ByteReader in(bytes);
  in.fail();
  EXPECT_EQ(in.get<uint8_t>(), 0);
  EXPECT_FALSE(in.ok());
}

}  // namespace
}  // namespace stagelink
