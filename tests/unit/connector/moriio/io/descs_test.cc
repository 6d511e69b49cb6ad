#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "connector/moriio/io/engine_desc.h"
#include "connector/moriio/io/memory_desc.h"

namespace stagelink::moriio {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

// Written by hand after the msgpack specification and mori's order of fields.
const std::string kEngineGolden = std::string("\x96", 1) + "\xa1k" + "\xa1n" + "\xa1h" + "\xa9" +
                                  "127.0.0.1" + "\xcd\x13\x88" + "\x4d";

EngineDesc engine_sample() {
  return {
      .key = "k", .node_id = "n", .hostname = "h", .host = "127.0.0.1", .port = 5000, .pid = 77};
}

MemoryDesc memory_sample() {
  MemoryDesc desc;
  desc.engine_key = "e";
  desc.id = 7;
  desc.data = 0x7f0000001000;
  desc.size = 4096;
  desc.loc = MemoryLocation::kCpu;
  desc.ipc_handle.fill(std::byte{'i'});
  desc.fabric_handle.fill(std::byte{'f'});
  desc.ipc_offset = 300;
  return desc;
}

const std::string kMemoryGolden = std::string("\x9f", 1) + "\xa1" + "e" + "\x07" + "\xff" + "\xa0" +
                                  std::string("\xcf\0\0\x7f\0\0\0\x10\0", 9) +
                                  std::string("\xcd\x10\0", 3) + "\x01" + "\xc4\x40" +
                                  std::string(64, 'i') + "\xff" + "\xcd\x01\x2c" + "\xc4\x40" +
                                  std::string(64, 'f') + std::string("\0\xa0\0\0", 4);

// The region that memory_sample() lies in, 256 bytes before it.
RegionDesc region_sample() {
  return {.instance = {1, 2},
          .index = 3,
          .generation = 4,
          .address = 0x7f0000001000 - 256,
          .bytes = 256 + 4096,
          .nonce = 5,
          .shareable = true};
}

TEST(MoriEngineDescTest, HasTheBytesOfMori) {
  EXPECT_EQ(engine_sample().pack(), bytes_of(kEngineGolden));
  auto desc = EngineDesc::unpack(bytes_of(kEngineGolden));
  ASSERT_TRUE(desc.ok()) << desc.status().to_string();
  EXPECT_EQ(*desc, engine_sample());
}

TEST(MoriEngineDescTest, DescribesThisProcess) {
  const EngineDesc desc = describe_process();
  EXPECT_GT(desc.pid, 0);
  EXPECT_FALSE(desc.node_id.empty());
  EXPECT_EQ(desc.pid, describe_process().pid);
}

TEST(MoriMemoryDescTest, HasTheBytesOfMori) {
  EXPECT_EQ(memory_sample().pack(), bytes_of(kMemoryGolden));
  auto desc = MemoryDesc::unpack(bytes_of(kMemoryGolden));
  ASSERT_TRUE(desc.ok()) << desc.status().to_string();
  EXPECT_EQ(*desc, memory_sample());
}

TEST(MoriMemoryDescTest, ShorterAndLongerArraysAreRead) {
  // As an older and a newer mori would write them.
  auto shorter =
      MemoryDesc::unpack(bytes_of(std::string("\x95\xa1"
                                              "e\x07\xff\xa0\x01",
                                              7)));
  ASSERT_TRUE(shorter.ok()) << shorter.status().to_string();
  EXPECT_EQ(shorter->id, 7U);
  EXPECT_EQ(shorter->data, 1U);
  EXPECT_EQ(shorter->size, 0U);
  auto longer = MemoryDesc::unpack(bytes_of("\xdc" + std::string("\0\x12", 2) +
                                            kMemoryGolden.substr(1) + "\xc0\x91\x01\x81\x01\x02"));
  ASSERT_TRUE(longer.ok()) << longer.status().to_string();
  EXPECT_EQ(*longer, memory_sample());
}

struct BadBlob {
  const char* what;
  std::string blob;
};

TEST(MoriDescTest, WhatIsNoDescriptorIsRefusedByField) {
  const BadBlob cases[] = {
      {"not one msgpack array", ""},
      {"not one msgpack array", kMemoryGolden.substr(0, kMemoryGolden.size() - 1)},
      {"left over", kMemoryGolden + "\x01"},
      {"not a msgpack array", "\x80"},
      {"field engine_key is not text", "\x91\x01"},
      {"field engine_key is not plain text",
       "\x91\xa2"
       "a\n"},
      {"field engine_key is too long", std::string("\x91\xda\x01\x01", 4) + std::string(257, 'a')},
      {"field id is not a number",
       "\x92\xa1"
       "e\xff"},
      {"field id = 4294967296 is too large", std::string("\x92\xa1"
                                                         "e\xcf\0\0\0\x01\0\0\0\0",
                                                         12)},
      {"field device_id is out of range", std::string("\x93\xa1"
                                                      "e\x01\xce\x80\0\0\0",
                                                      9)},
      {"field loc = 3 is too large", std::string("\x97\xa1"
                                                 "e\x01\x01\xa0\x01\x01\x03",
                                                 9)},
      {"field ipc_handle is not 64 bytes", std::string("\x98\xa1"
                                                       "e\x01\x01\xa0\x01\x01\x01\xc4\x01x",
                                                       12)},
      {"more than 16384", std::string((16 << 10) + 1, '\x01')},
      {"not one msgpack array", std::string("\xdc\0\x41", 3) + std::string(65, '\x01')},
      {"not one msgpack array", std::string(64, '\x91') + "\x01"},
  };
  for (const BadBlob& bad : cases) {
    const Status status = MemoryDesc::unpack(bytes_of(bad.blob)).status();
    EXPECT_EQ(status.reason(), Reason::kFrame) << bad.what;
    EXPECT_NE(status.message().find(bad.what), std::string_view::npos)
        << status.to_string() << ", expected: " << bad.what;
  }
}

TEST(MoriDescTest, TextAndArraysUpToTheirBoundsAreRead) {
  const std::string longest(DescReader::kMaxTextBytes, 'a');
  auto text = MemoryDesc::unpack(bytes_of(std::string("\x91\xda\x01\0", 4) + longest));
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_EQ(text->engine_key, longest);
  auto many = MemoryDesc::unpack(bytes_of(std::string("\xdc\0\x40", 3) + kMemoryGolden.substr(1) +
                                          std::string(64 - 15, '\x01')));
  EXPECT_TRUE(many.ok()) << many.status().to_string();
}

TEST(MoriEngineDescTest, PortsAndProcessesAreBounded) {
  const std::string head = kEngineGolden.substr(0, kEngineGolden.size() - 4);
  EXPECT_TRUE(EngineDesc::unpack(bytes_of(head + "\xcd\xff\xff\x4d")).ok());
  EXPECT_FALSE(EngineDesc::unpack(bytes_of(head + std::string("\xce\0\x01\0\0\x4d", 6))).ok());
  EXPECT_FALSE(EngineDesc::unpack(bytes_of(head + "\xcd\x13\x88\xff")).ok());
}

TEST(MoriMemoryDescTest, CarriesItsRegionThroughTheHandles) {
  MemoryDesc desc = memory_sample();
  desc.set_region(region_sample());
  auto again = MemoryDesc::unpack(desc.pack());
  ASSERT_TRUE(again.ok());
  auto region = again->region();
  ASSERT_TRUE(region.ok()) << region.status().to_string();
  EXPECT_EQ(*region, region_sample());
}

TEST(MoriMemoryDescTest, HandlesThatDoNotFitAreRefused) {
  MemoryDesc good = memory_sample();
  good.set_region(region_sample());
  MemoryDesc other = good;
  other.id = 8;
  other.set_region(region_sample());

  MemoryDesc foreign = memory_sample();  // Handles of some GPU, say.
  MemoryDesc mixed = good;
  mixed.fabric_handle = other.fabric_handle;
  MemoryDesc moved = good;
  moved.data += 8;
  MemoryDesc grown = good;
  grown.size += 1;
  MemoryDesc renumbered = good;
  renumbered.id += 1;
  MemoryDesc damaged = good;
  damaged.fabric_handle[3] ^= std::byte{1};
  MemoryDesc outside = good;
  RegionDesc small = region_sample();
  small.bytes -= 1;
  outside.set_region(small);
  for (const MemoryDesc* desc :
       {&foreign, &mixed, &moved, &grown, &renumbered, &damaged, &outside}) {
    EXPECT_EQ(desc->region().status().reason(), Reason::kFrame)
        << desc->region().status().to_string();
  }
  EXPECT_TRUE(good.region().ok());
}

}  // namespace
}  // namespace stagelink::moriio
