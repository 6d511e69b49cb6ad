#include "cli/replay/workload/layout.h"

#include <set>

#include <gtest/gtest.h>

#include "cli/replay/workload/model.h"

namespace stagelink::cli::replay {
namespace {

Layout layout_of(const char* model, uint32_t layers, uint32_t block_tokens = 16) {
  const auto geometry = find_model(model);
  EXPECT_TRUE(geometry.ok());
  const auto element = dtype_bytes((*geometry).dtype);
  EXPECT_TRUE(element.ok());
  const auto layout = make_layout(*geometry, layers, *element, block_tokens);
  EXPECT_TRUE(layout.ok()) << layout.status().to_string();
  return *layout;
}

TEST(ModelTest, BytesPerTokenAreThoseOfThePublishedModels) {
  const auto bytes_per_token = [](const char* model) {
    const auto geometry = find_model(model);
    const Layout layout = layout_of(model, (*geometry).layers);
    return layout.block_bytes() / layout.block_tokens;
  };
  EXPECT_EQ(bytes_per_token("llama-3.1-8b"), 131'072U);
  EXPECT_EQ(bytes_per_token("llama-3.1-70b"), 327'680U);
  EXPECT_EQ(bytes_per_token("llama-3.2-1b"), 32'768U);
  EXPECT_EQ(bytes_per_token("qwen2.5-7b"), 57'344U);
  EXPECT_EQ(bytes_per_token("qwen3-8b"), 147'456U);
  EXPECT_EQ(bytes_per_token("mistral-7b"), 131'072U);
  EXPECT_EQ(bytes_per_token("gemma-2-9b"), 344'064U);
  EXPECT_EQ(bytes_per_token("deepseek-v2-lite"), 31'104U);
  EXPECT_EQ(bytes_per_token("deepseek-v3"), 70'272U);
}

TEST(ModelTest, AnUnknownModelIsRefusedWithTheKnownOnes) {
  const auto found = find_model("llama-9");
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.status().message().find("qwen3-8b"), std::string_view::npos);
}

TEST(ModelTest, AScaleIsAShareOfTheLayers) {
  EXPECT_EQ(*scaled_layers(32, "1/32"), 1U);
  EXPECT_EQ(*scaled_layers(32, "0.5"), 16U);
  EXPECT_EQ(*scaled_layers(32, "1"), 32U);
  EXPECT_EQ(*scaled_layers(61, "0.001"), 1U);
  for (const char* bad : {"0", "-1", "1.01", "2/1", "1/0", "", "x", "1/", "nan", "1/2/3"}) {
    EXPECT_FALSE(scaled_layers(32, bad).ok()) << bad;
  }
}

TEST(LayoutTest, APieceOfLlamaIs32KiB) {
  EXPECT_EQ(layout_of("llama-3.1-8b", 1).piece_bytes(), 32U << 10);
}

TEST(LayoutTest, LatentAttentionHasOnePlanePerLayer) {
  const Layout layout = layout_of("deepseek-v3", 3);
  EXPECT_EQ(layout.planes(), 3U);
  EXPECT_EQ(layout.piece_bytes(), 16U * 576 * 2);
}

TEST(LayoutTest, PiecesTileThePoolWithoutOverlap) {
  Layout layout = layout_of("qwen2.5-7b", 3);
  layout.pool_blocks = 7;
  std::set<uint64_t> offsets;
  for (uint32_t plane = 0; plane < layout.planes(); ++plane) {
    for (uint32_t block = 0; block < layout.pool_blocks; ++block) {
      const uint64_t offset = layout.offset(plane, block);
      EXPECT_EQ(offset % layout.piece_bytes(), 0U);
      EXPECT_LE(offset + layout.piece_bytes(), layout.pool_bytes());
      offsets.insert(offset);
    }
  }
  EXPECT_EQ(offsets.size() * layout.piece_bytes(), layout.pool_bytes());
}

TEST(LayoutTest, BlockTokensAreAPowerOfTwoUpToOneId) {
  const auto model = find_model("llama-3.1-8b");
  for (const uint32_t good : {1U, 16U, 512U}) EXPECT_TRUE(make_layout(*model, 1, 2, good).ok());
  for (const uint32_t bad : {0U, 3U, 24U, 1024U}) {
    EXPECT_FALSE(make_layout(*model, 1, 2, bad).ok()) << bad;
  }
}

TEST(LayoutTest, LayersAreThoseOfTheModel) {
  const auto model = find_model("llama-3.1-8b");
  EXPECT_TRUE(make_layout(*model, 32, 2, 16).ok());
  EXPECT_FALSE(make_layout(*model, 33, 2, 16).ok());
  EXPECT_FALSE(make_layout(*model, 0, 2, 16).ok());
}

}  // namespace
}  // namespace stagelink::cli::replay
