#include "connector/block_layout/cache_geometry.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "connector/block_layout/run_template.h"

namespace stagelink::block_layout {
namespace {

bool names(const Status& status, std::string_view text) {
  return status.message().find(text) != std::string_view::npos;
}

CacheTensor dense(const std::vector<uint64_t>& shape, uint32_t element_bytes = 2) {
  CacheTensor out{.shape = shape, .strides = std::vector<uint64_t>(shape.size(), 1)};
  out.element_bytes = element_bytes;
  for (size_t i = shape.size() - 1; i > 0; --i) out.strides[i - 1] = out.strides[i] * shape[i];
  return out;
}

const LayerSpec kSpec{.block_size = 16, .num_kv_heads = 4, .head_size = 8};

Status refusal(const CacheTensor& tensor, const LayerSpec& spec) {
  return find_geometry(tensor, spec).status();
}

TEST(CacheGeometryTest, KeysBeforeValues) {
  for (const auto& shape : {std::vector<uint64_t>{2, 7, 16, 4, 8}, {2, 7, 4, 16, 8}}) {
    const auto g = find_geometry(dense(shape), kSpec);
    ASSERT_TRUE(g.ok()) << g.status().to_string();
    EXPECT_EQ((*g).layout, Layout::kKvFirst);
    EXPECT_EQ((*g).num_blocks, 7U);
    EXPECT_EQ((*g).block_len(), 16U * 4 * 8 * 2);
    EXPECT_EQ((*g).block_stride, (*g).block_len());
    EXPECT_EQ((*g).plane_stride, 7 * (*g).block_len());
    EXPECT_TRUE((*g).halves);
    EXPECT_EQ((*g).extent(), 2U * 7 * 1024);
    EXPECT_EQ((*with_num_blocks(*g, 9)).plane_stride, 9 * (*g).block_len());
  }
}

TEST(CacheGeometryTest, KeysAndValuesByTurns) {
  for (const auto& shape : {std::vector<uint64_t>{7, 2, 16, 4, 8}, {7, 2, 4, 16, 8}}) {
    const auto g = find_geometry(dense(shape), kSpec);
    ASSERT_TRUE(g.ok()) << g.status().to_string();
    EXPECT_EQ((*g).layout, Layout::kInterleaved);
    EXPECT_EQ((*g).block_stride, 2 * (*g).block_len());
    EXPECT_EQ((*g).plane_stride, (*g).block_len());
    EXPECT_FALSE((*g).halves);
    EXPECT_EQ((*with_num_blocks(*g, 9)).plane_stride, (*g).plane_stride);
  }
}

TEST(CacheGeometryTest, RowsOfAllHeadsInAViewWithItsOwnStrides) {
  CacheTensor tensor = dense({7, 4, 16, 16});
  const LayerSpec spec{.block_size = 16, .num_kv_heads = 4, .num_states = 16, .content_bytes = 32};
  const auto g = find_geometry(tensor, spec);
  ASSERT_TRUE(g.ok()) << g.status().to_string();
  EXPECT_EQ((*g).block_len(), 16U * 4 * 32);
  EXPECT_EQ((*g).text(), "rows heads,tokens 16x4x32 kernel 16");
  // The blocks of several layers by turns, and tokens before heads in memory.
  tensor.strides = {5 * 1024, 16, 64, 1};
  const auto shared = find_geometry(tensor, spec);
  ASSERT_TRUE(shared.ok()) << shared.status().to_string();
  EXPECT_EQ((*shared).block_stride, 10U * 1024);
  EXPECT_EQ((*shared).extent(), 6U * 10 * 1024 + 2048);
  EXPECT_EQ((*shared).text(), "rows tokens,heads 16x4x32 kernel 16");
}

TEST(CacheGeometryTest, TheLatentOfMlaIsOneHead) {
  const LayerSpec spec{.mla = true, .block_size = 16, .num_kv_heads = 1, .content_bytes = 1152};
  const auto g = find_geometry(dense({7, 1, 16, 576}), spec);
  ASSERT_TRUE(g.ok()) << g.status().to_string();
  EXPECT_EQ((*g).block_len(), 16U * 1152);
  // Compressed: fewer rows than tokens.
  LayerSpec compressed = spec;
  compressed.num_states = 4;
  EXPECT_EQ((*find_geometry(dense({7, 1, 4, 576}), compressed)).block_len(), 4U * 1152);
  EXPECT_FALSE(find_geometry(dense({2, 7, 16, 1, 576}), spec).ok());
}

TEST(CacheGeometryTest, KernelBlocksMakeUpABlock) {
  const auto first = find_geometry(dense({2, 14, 8, 4, 8}), kSpec);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ((*first).num_blocks, 7U);
  EXPECT_EQ((*first).kernel_tokens, 8U);
  EXPECT_EQ((*first).block_len(), 1024U);
  EXPECT_EQ((*first).block_stride, 1024U);
  const auto turns = find_geometry(dense({14, 2, 8, 4, 8}), kSpec);
  EXPECT_EQ((*turns).block_len(), 2048U);  // K and V of a block do not lie apart.
  EXPECT_EQ((*turns).block_stride, 2048U);
  EXPECT_TRUE(names(refusal(dense({2, 15, 8, 4, 8}), kSpec), "15 kernel blocks"));
}

// Two blocks, so that either of the first two axes may be keys and values.
TEST(CacheGeometryTest, TwoBlocksDoNotFoolTheDetection) {
  const CacheTensor tensor = dense({2, 2, 16, 4, 8});
  const auto status = refusal(tensor, kSpec);
  EXPECT_EQ(status.reason(), Reason::kIncompatible);
  EXPECT_TRUE(names(status, "layout mismatch")) << status.to_string();
  EXPECT_TRUE(names(status, "kv_first") && names(status, "interleaved"));
  for (const Layout layout : {Layout::kKvFirst, Layout::kInterleaved}) {
    LayerSpec named = kSpec;
    named.layout = layout;
    EXPECT_EQ((*find_geometry(tensor, named)).layout, layout);
  }
}

TEST(CacheGeometryTest, ANamedLayoutThatDoesNotFitIsRefused) {
  LayerSpec named = kSpec;
  named.layout = Layout::kInterleaved;
  EXPECT_TRUE(names(refusal(dense({2, 7, 16, 4, 8}), named), "no interleaved cache"));
}

TEST(CacheGeometryTest, HeadsThatAreNotKnownMakeKernelBlocksAmbiguous) {
  const LayerSpec spec{.block_size = 16};
  EXPECT_TRUE(names(refusal(dense({2, 8, 16, 8, 8}), spec), "reads as"));
  LayerSpec known = spec;
  known.num_kv_heads = 8;
  EXPECT_EQ((*find_geometry(dense({2, 8, 16, 8, 8}), known)).num_blocks, 8U);
  known.num_kv_heads = 16;
  EXPECT_EQ((*find_geometry(dense({2, 8, 16, 8, 8}), known)).num_blocks, 4U);
}

TEST(CacheGeometryTest, AsManyHeadsAsTokensMoveInWholeBlocksOnly) {
  LayerSpec spec = kSpec;
  spec.num_kv_heads = 16;
  const auto g = find_geometry(dense({2, 7, 16, 16, 8}), spec);
  ASSERT_TRUE(g.ok()) << g.status().to_string();
  EXPECT_FALSE((*g).heads_known);
  EXPECT_TRUE(make_template(*g, *g).ok());
  EXPECT_EQ(make_template(*g, *g, HeadSlice{0, 0, 8}).status().reason(), Reason::kIncompatible);
}

TEST(CacheGeometryTest, OpaqueBlocksMoveWholeAndOnlyToTheirLike) {
  LayerSpec spec = kSpec;
  spec.opaque = true;
  const auto ours = *find_geometry(dense({2, 7, 16, 4, 8}), spec);
  const auto turned = *find_geometry(dense({2, 7, 4, 16, 8}), spec);
  EXPECT_TRUE(make_template(ours, *with_num_blocks(ours, 9)).ok());
  EXPECT_TRUE(make_template(ours, ours, HeadSlice{0, 0, 4}).ok());  // All of them.
  EXPECT_FALSE(make_template(ours, ours, HeadSlice{0, 0, 2}).ok());
  const auto status = make_template(ours, turned).status();
  EXPECT_TRUE(names(status, "layout: ours kv_first tokens,heads")) << status.to_string();
}

TEST(CacheGeometryTest, GeometriesThatDoNotMatchAreRefusedByField) {
  const auto ours = *find_geometry(dense({2, 7, 16, 4, 8}), kSpec);
  const auto with = [](const std::vector<uint64_t>& shape, uint32_t block_size, uint32_t heads,
                       uint32_t head_size) {
    return *find_geometry(dense(shape), {.block_size = block_size,
                                         .num_kv_heads = heads,
                                         .head_size = head_size,
                                         .layout = Layout::kKvFirst});
  };
  EXPECT_TRUE(names(make_template(ours, with({2, 7, 32, 4, 8}, 32, 4, 8)).status(),
                    "block_size: ours 16, theirs 32"));
  EXPECT_TRUE(names(make_template(ours, with({2, 7, 16, 2, 8}, 16, 2, 8)).status(),
                    "kv_heads: ours 4, theirs 2"));
  EXPECT_TRUE(names(make_template(ours, with({2, 7, 16, 4, 4}, 16, 4, 4)).status(),
                    "row_bytes: ours 16, theirs 8"));
  EXPECT_EQ(make_template(ours, ours, HeadSlice{3, 0, 2}).status().reason(), Reason::kOutOfBounds);
  EXPECT_TRUE(make_template(ours, ours, HeadSlice{2, 0, 2}).ok());
}

TEST(CacheGeometryTest, RowsThatOverlapOrAreTornAreRefused) {
  CacheTensor tensor = dense({7, 2, 16, 4, 8});
  tensor.strides[0] -= 1;
  EXPECT_EQ(refusal(tensor, kSpec).reason(), Reason::kNotContiguous);
  tensor = dense({7, 2, 16, 4, 8});
  tensor.strides[4] = 2;
  EXPECT_EQ(refusal(tensor, kSpec).reason(), Reason::kNotContiguous);
}

TEST(CacheGeometryTest, SizesBeyondBoundsAreRefused) {
  EXPECT_FALSE(find_geometry(dense({2, 0, 16, 4, 8}), kSpec).ok());
  EXPECT_FALSE(find_geometry(dense({7, 16, 4}), kSpec).ok());
  CacheTensor tensor = dense({2, 7, 16, 4, 8});
  tensor.strides[0] = ~uint64_t{0};
  EXPECT_EQ(refusal(tensor, kSpec).reason(), Reason::kOverflow);
  tensor = dense({2, 7, 16, 4, 8});
  tensor.element_bytes = 0;
  EXPECT_EQ(refusal(tensor, kSpec).reason(), Reason::kInvalidArgument);
  LayerSpec spec = kSpec;
  spec.block_size = 0;
  EXPECT_EQ(refusal(dense({2, 7, 16, 4, 8}), spec).reason(), Reason::kInvalidArgument);
  const auto ours = *find_geometry(dense({2, 7, 16, 4, 8}), kSpec);
  EXPECT_FALSE(with_num_blocks(ours, 0).ok());
  EXPECT_FALSE(with_num_blocks(ours, ~uint64_t{0}).ok());
  EXPECT_TRUE(with_num_blocks(ours, uint64_t{1} << 31).ok());
}

TEST(CacheGeometryTest, LayoutNamesRoundTrip) {
  for (const Layout layout :
       {Layout::kAuto, Layout::kKvFirst, Layout::kInterleaved, Layout::kRows}) {
    EXPECT_EQ(*parse_layout(layout_name(layout)), layout);
  }
  EXPECT_TRUE(names(parse_layout("nhd").status(), "`nhd`"));
}

}  // namespace
}  // namespace stagelink::block_layout
