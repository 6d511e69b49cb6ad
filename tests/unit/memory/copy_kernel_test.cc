#include "memory/copy_kernel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/random.h"

namespace stagelink::memory {
namespace {

constexpr uint8_t kCanary = 0xC5;

// The first byte that is not what a copy of `bytes` from `source` at `offset` must leave in
// `buffer`, or -1.
ptrdiff_t first_wrong(const std::vector<uint8_t>& buffer, size_t offset, const uint8_t* source,
                      size_t bytes) {
  for (size_t i = 0; i < buffer.size(); ++i) {
    const bool inside = i >= offset && i < offset + bytes;
    if (buffer[i] != (inside ? source[i - offset] : kCanary)) return static_cast<ptrdiff_t>(i);
  }
  return -1;
}

std::vector<uint8_t> numbered(size_t bytes) {
  std::vector<uint8_t> data(bytes);
  SplitMix64 random(7);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.next());
  return data;
}

class EachKernelTest : public testing::TestWithParam<CopyKernel> {};

TEST_P(EachKernelTest, SmallSizesAtAllAlignmentsCopyExactly) {
  constexpr size_t kMaxBytes = 400;
  const std::vector<uint8_t> source = numbered(kMaxBytes + 64);
  std::vector<uint8_t> target(kMaxBytes + 192);
  for (size_t bytes = 0; bytes <= kMaxBytes; ++bytes) {
    for (size_t to = 0; to < 64; ++to) {
      const size_t from = (to * 7 + bytes) % 64;
      std::fill(target.begin(), target.end(), kCanary);
      GetParam().copy(target.data() + 64 + to, source.data() + from, bytes);
      copy_fence();
      const ptrdiff_t wrong = first_wrong(target, 64 + to, source.data() + from, bytes);
      ASSERT_EQ(wrong, -1) << bytes << " bytes to +" << to << " from +" << from;
    }
  }
}

TEST_P(EachKernelTest, LargeSizesCopyExactly) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  SplitMix64 random(kSeed);
  const std::vector<uint8_t> source = numbered(70'000);
  std::vector<uint8_t> target(70'200);
  for (int i = 0; i < 300; ++i) {
    const size_t bytes = i % 3 == 0 ? size_t{1} << random.below(17) : random.below(69'000);
    const size_t to = random.below(130);
    const size_t from = random.below(700);
    std::fill(target.begin(), target.end(), kCanary);
    GetParam().copy(target.data() + to, source.data() + from, bytes);
    copy_fence();
    ASSERT_EQ(first_wrong(target, to, source.data() + from, bytes), -1)
        << bytes << " bytes to +" << to << " from +" << from;
  }
}

// Two readable pages between two that fault.
class GuardedPages {
 public:
  GuardedPages() : page_(static_cast<size_t>(::sysconf(_SC_PAGESIZE))) {
    raw_ = static_cast<uint8_t*>(
        ::mmap(nullptr, 4 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(raw_ + page_, 2 * page_, PROT_READ | PROT_WRITE);
  }
  ~GuardedPages() { ::munmap(raw_, 4 * page_); }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;
  uint8_t* begin() const { return raw_ + page_; }
  uint8_t* end() const { return raw_ + 3 * page_; }

 private:
  size_t page_;
  uint8_t* raw_;
};

TEST_P(EachKernelTest, TouchesNothingOutsideTheRange) {
  const GuardedPages source;
  const GuardedPages target;
  for (size_t bytes = 0; bytes <= 600; ++bytes) {
    GetParam().copy(target.end() - bytes, source.end() - bytes, bytes);
    GetParam().copy(target.begin(), source.begin(), bytes);
    GetParam().copy(target.begin(), source.end() - bytes, bytes);
    GetParam().copy(target.end() - bytes, source.begin(), bytes);
  }
  copy_fence();
}

TEST_P(EachKernelTest, BatchCopiesEachPieceWherePiecesSay) {
  constexpr uint64_t kSeed = 13;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  SplitMix64 random(kSeed);
  const std::vector<uint8_t> source = numbered(20'000);
  for (size_t count = 0; count <= 40; ++count) {
    std::vector<uint8_t> target(50'000, kCanary);
    std::vector<uint8_t> expected = target;
    std::vector<CopyPiece> pieces;
    size_t at = random.below(64);
    for (size_t i = 0; i < count; ++i) {
      const size_t bytes = random.below(4) == 0 ? 0 : random.below(1000);
      const size_t from = random.below(source.size() - bytes);
      pieces.push_back({target.data() + at, source.data() + from, bytes});
      std::copy_n(source.data() + from, bytes, expected.data() + at);
      at += bytes + random.below(100);
    }
    GetParam().copy_many(pieces.size(), [&](size_t i) { return pieces[i]; });
    copy_fence();
    ASSERT_EQ(target, expected) << count << " pieces";
  }
}

std::vector<CopyKernel> all_kernels() {
  const auto kernels = runnable_copy_kernels();
  std::vector<CopyKernel> all(kernels.begin(), kernels.end());
  // Everything streams, so that a batch goes through the kernel and not through memcpy.
  for (CopyKernel& kernel : all) kernel.streaming_min_bytes = 0;
  return all;
}

INSTANTIATE_TEST_SUITE_P(Kernels, EachKernelTest, testing::ValuesIn(all_kernels()),
                         [](const auto& kernel) { return std::string(kernel.param.name); });

thread_local size_t streamed_bytes = 0;

void count_streamed(const CopyPiece* pieces, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
    streamed_bytes += pieces[i].bytes;
  }
}

TEST(CopyKernelTest, StreamsFromTheThresholdOn) {
  const CopyKernel kernel{count_streamed, 100, "counting"};
  const std::vector<uint8_t> source = numbered(200);
  std::vector<uint8_t> target(200);
  streamed_bytes = 0;
  kernel.copy(target.data(), source.data(), 99);
  EXPECT_EQ(streamed_bytes, 0U);
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + 99, target.begin()));
  kernel.copy(target.data(), source.data(), 100);
  EXPECT_EQ(streamed_bytes, 100U);
}

TEST(CopyKernelTest, BatchStreamsLargePiecesAndCopiesSmallOnesOnceEach) {
  constexpr size_t kSmall = 3;
  constexpr size_t kLarge = 5;
  const CopyKernel kernel{count_streamed, kLarge, "counting"};
  const std::vector<uint8_t> source = numbered(4000);
  for (size_t count = 0; count <= 3 * CopyKernel::kChunk; ++count) {
    std::vector<uint8_t> target(4000, kCanary);
    std::vector<uint8_t> expected = target;
    std::vector<int> asked(count);
    streamed_bytes = 0;
    size_t larges = 0;
    kernel.copy_many(count, [&](size_t i) {
      ++asked[i];
      const size_t bytes = i % 7 < count % 8 ? kLarge : kSmall;
      larges += bytes == kLarge;
      std::copy_n(source.data() + i, bytes, expected.data() + i * 10);
      return CopyPiece{target.data() + i * 10, source.data() + i, bytes};
    });
    ASSERT_EQ(streamed_bytes, larges * kLarge) << count;
    ASSERT_EQ(target, expected) << count;
    ASSERT_EQ(std::count(asked.begin(), asked.end(), 1), static_cast<ptrdiff_t>(count));
  }
}

TEST(CopyKernelTest, PickTakesTheThresholdOrTheCalibratedOne) {
  EXPECT_EQ(pick_copy_kernel(12345).streaming_min_bytes, 12345U);
  EXPECT_EQ(pick_copy_kernel(0).streaming_min_bytes,
            runnable_copy_kernels().front().streaming_min_bytes);
  EXPECT_GT(pick_copy_kernel(0).streaming_min_bytes, 0U);
}

TEST(CopyKernelTest, TheGenericKernelRunsEverywhere) {
  EXPECT_STREQ(runnable_copy_kernels().back().name, "generic");
}

}  // namespace
}  // namespace stagelink::memory
