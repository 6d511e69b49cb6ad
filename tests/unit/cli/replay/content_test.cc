#include "cli/replay/workload/content.h"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/replay/workload/block_content.h"
#include "cli/replay/workload/layout.h"

namespace stagelink::cli::replay {
namespace {

constexpr uint64_t kTokenBytes = 64;

std::vector<std::byte> piece(uint64_t id, uint32_t plane, uint32_t first_token, size_t bytes) {
  std::vector<std::byte> out(bytes, std::byte{0xEE});
  fill_piece({id, plane, first_token, kTokenBytes}, out);
  return out;
}

TEST(ContentTest, WhatWasFilledIsRightForItsKeyAlone) {
  const auto bytes = piece(5, 1, 32, 1024);
  EXPECT_FALSE(find_wrong_word({5, 1, 32, kTokenBytes}, bytes).has_value());
  EXPECT_EQ(find_wrong_word({6, 1, 32, kTokenBytes}, bytes), 0U);
  EXPECT_EQ(find_wrong_word({5, 2, 32, kTokenBytes}, bytes), 0U);
  EXPECT_EQ(find_wrong_word({5, 1, 33, kTokenBytes}, bytes), 0U);
}

TEST(ContentTest, EveryFlippedBitIsFoundAndItsWordNamed) {
  auto bytes = piece(9, 0, 0, 200);  // With a tail that fills no vector.
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[at] ^= static_cast<std::byte>(1 << bit);
      EXPECT_EQ(find_wrong_word({9, 0, 0, kTokenBytes}, bytes), at / 8 * 8);
      bytes[at] ^= static_cast<std::byte>(1 << bit);
    }
  }
}

TEST(ContentTest, NoTwoWordsAreEqualOverIdsPlanesAndTokens) {
  std::set<uint64_t> words;
  size_t count = 0;
  for (uint64_t id = 0; id < 20; ++id) {
    for (uint32_t plane = 0; plane < 4; ++plane) {
      const auto bytes = piece(id, plane, 0, 512 * kTokenBytes);
      for (size_t at = 0; at < bytes.size(); at += 8, ++count) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, sizeof word);
        words.insert(word);
      }
    }
  }
  EXPECT_EQ(words.size(), count);
}

TEST(ContentTest, ATokenHasTheSameBytesInABlockOfAnySize) {
  const auto whole = piece(3, 0, 0, 16 * kTokenBytes);
  const auto second_half = piece(3, 0, 8, 8 * kTokenBytes);
  EXPECT_EQ(std::memcmp(whole.data() + 8 * kTokenBytes, second_half.data(), second_half.size()), 0);
}

TEST(BlockContentTest, AWrongByteIsNamedByLayerPartTokenAndHead) {
  Layout layout{3, 2, 4, 32, 16, 5};
  std::vector<std::byte> pool(layout.pool_bytes());
  const BlockKey key{77, 48};
  fill_block(layout, pool, key, 2);
  ASSERT_FALSE(check_block(layout, pool, key, 2).has_value());
  // Layer 1, V, token 50, head 3.
  const uint64_t at = layout.offset(1 * 2 + 1, 2) + 2 * layout.token_bytes() + 3 * 32 + 9;
  pool[at] ^= std::byte{1};
  const auto wrong = check_block(layout, pool, key, 2);
  ASSERT_TRUE(wrong.has_value());
  EXPECT_EQ(wrong->to_string(key), "id 77 token 50 layer 1 part 1 head 3");
}

TEST(BlockContentTest, FillingABlockTouchesNoOther) {
  Layout layout{2, 2, 2, 32, 16, 3};
  std::vector<std::byte> pool(layout.pool_bytes());
  fill_block(layout, pool, {1, 0}, 0);
  fill_block(layout, pool, {2, 0}, 2);
  fill_block(layout, pool, {3, 0}, 1);
  EXPECT_FALSE(check_block(layout, pool, {1, 0}, 0).has_value());
  EXPECT_FALSE(check_block(layout, pool, {2, 0}, 2).has_value());
}

}  // namespace
}  // namespace stagelink::cli::replay
