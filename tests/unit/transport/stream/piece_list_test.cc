#include "transport/stream/piece_list.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/random.h"

namespace stagelink::transport {
namespace {

// Pieces with gaps between them, of sizes 1 to `largest`, in one buffer.
class PieceListTest : public ::testing::Test {
 protected:
  void fill(size_t count, uint64_t largest) {
    memory_.assign(count * (largest + 3), std::byte{0xEE});
    std::byte* at = memory_.data();
    for (size_t i = 0; i < count; ++i) {
      const uint64_t size = 1 + random_.below(largest);
      list_.add(at, size);
      for (uint64_t k = 0; k < size; ++k) places_.push_back(at + k);
      at += size + 1 + random_.below(2);
    }
  }

  SplitMix64 random_{7};
  std::vector<std::byte> memory_;
  std::vector<std::byte*> places_;  // Of each byte, in the order of the stream.
  PieceList list_;
};

TEST_F(PieceListTest, CopyOutGivesTheBytesFromThePositionOn) {
  fill(500, 300);
  for (std::byte* place : places_) *place = static_cast<std::byte>(random_.next());
  size_t at = 0;
  while (list_.left() > 0) {
    std::vector<std::byte> out(1 + random_.below(5000));
    const size_t got = list_.copy_out(out);
    ASSERT_EQ(got, std::min<size_t>(out.size(), places_.size() - at));
    for (size_t i = 0; i < got; ++i) ASSERT_EQ(out[i], *places_[at + i]);
    // Less may have been sent than was copied.
    const size_t step = 1 + random_.below(got);
    list_.advance(step);
    at += step;
  }
  EXPECT_EQ(at, places_.size());
}

TEST_F(PieceListTest, CopyInPutsEachByteInItsPlaceAndTouchesNoOther) {
  for (const uint64_t largest : {1, 60, 300, 4000}) {
    list_.clear();
    places_.clear();
    fill(300, largest);
    std::vector<std::byte> sent(places_.size());
    for (std::byte& byte : sent) byte = static_cast<std::byte>(random_.below(200));
    for (size_t at = 0; at < sent.size();) {
      const size_t step = std::min<size_t>(1 + random_.below(3000), sent.size() - at);
      list_.copy_in(std::span(sent).subspan(at, step));
      list_.advance(step);
      at += step;
    }
    for (size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(*places_[i], sent[i]);
    const auto gaps = std::count(memory_.begin(), memory_.end(), std::byte{0xEE});
    EXPECT_EQ(static_cast<size_t>(gaps), memory_.size() - places_.size());
  }
}

TEST_F(PieceListTest, SmallAheadIsAMatterOfTheMean) {
  std::vector<std::byte> memory(8 * PieceList::kSmallBytes);
  const auto with = [&](uint64_t first, uint64_t second) {
    PieceList list;
    list.add(memory.data(), first);
    list.add(memory.data() + 4 * PieceList::kSmallBytes, second);
    return list.shorter_ahead(PieceList::kSmallBytes);
  };
  EXPECT_TRUE(with(PieceList::kSmallBytes, PieceList::kSmallBytes - 1));
  EXPECT_FALSE(with(PieceList::kSmallBytes, PieceList::kSmallBytes));
  PieceList one;
  one.add(memory.data(), 8);
  EXPECT_FALSE(one.shorter_ahead(PieceList::kSmallBytes))
      << "the kernel finds one piece soon enough";
}

}  // namespace
}  // namespace stagelink::transport
