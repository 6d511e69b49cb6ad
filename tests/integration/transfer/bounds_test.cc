// What does not fit is refused, named, and moves no byte.

#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 64 << 10;
constexpr uint64_t kMax = ~uint64_t{0};

class BoundsTest : public PathTest {
 protected:
  BoundsTest() : link_(reader_options("reader"), options("owner"), path(), kBytes) {
    link_.owner.fill(link_.remote, seed());
  }
  void TearDown() override {
    // Whatever was refused, the owner's bytes are its own.
    EXPECT_EQ(link_.owner.first_wrong(link_.remote, seed()), kNone);
    EXPECT_TRUE(link_.memory.canaries_intact());
  }
  Status read(uint64_t local, uint64_t remote, uint64_t size) {
    Ranges ranges;
    ranges.add(local, remote, size);
    auto transfer = link_.session.read(ranges.list());
    return transfer.ok() ? transfer->wait(5s) : transfer.status();
  }

  Link link_;
};
SL_FOR_BOTH_PATHS(BoundsTest);

TEST_P(BoundsTest, LastByteIsInsideAndTheNextIsNot) {
  EXPECT_OK(read(kBytes - 1, kBytes - 1, 1));
  EXPECT_OK(read(0, 0, kBytes));
  EXPECT_REASON(Reason::kOutOfBounds, read(0, kBytes, 1));
  EXPECT_REASON(Reason::kOutOfBounds, read(kBytes, 0, 1));
  EXPECT_REASON(Reason::kOutOfBounds, read(0, 0, kBytes + 1));
  EXPECT_REASON(Reason::kOutOfBounds, read(1, 0, kBytes));
  EXPECT_REASON(Reason::kOutOfBounds, read(0, 1, kBytes));
}

// T49: sums that wrap around 64 bits are no way in.
TEST_P(BoundsTest, WrappingSumsAreOutside) {
  EXPECT_REASON(Reason::kOutOfBounds, read(0, kMax - 7, 8));
  EXPECT_REASON(Reason::kOutOfBounds, read(kMax - 7, 0, 8));
  EXPECT_REASON(Reason::kOutOfBounds, read(0, kMax, 1));
  EXPECT_REASON(Reason::kOutOfBounds, read(0, 8, kMax - 7));
  EXPECT_REASON(Reason::kOutOfBounds, read(8, 0, kMax));
}

TEST_P(BoundsTest, OneBadRangeRefusesTheWholeBatch) {
  Ranges ranges;
  for (uint64_t i = 0; i < 8; ++i) ranges.add(i * 4096, i * 4096, 4096);
  ranges.add(0, kBytes - 8, 16);
  const Status status = link_.session.read(ranges.list()).status();
  EXPECT_REASON(Reason::kOutOfBounds, status);
  EXPECT_NE(status.message().find("range 8"), std::string_view::npos) << status.message();
  EXPECT_NE(status.message().find(std::to_string(kBytes - 8)), std::string_view::npos);
  EXPECT_EQ(first_not(link_.memory.bytes(), kUntouched), std::nullopt);
}

TEST_P(BoundsTest, RefusedWriteLeavesTheOwnerUntouched) {
  Ranges ranges;
  ranges.add(0, 0, 4096);
  ranges.add(kBytes - 8, 8, 16);
  EXPECT_REASON(Reason::kOutOfBounds, link_.session.write(ranges.list()).status());
}

TEST_P(BoundsTest, RegionIndexBeyondTheSessionIsRefused) {
  Ranges ranges;
  ranges.add(0, 0, 8);
  ranges.remote_regions = {1};
  EXPECT_REASON(Reason::kOutOfBounds, link_.session.read(ranges.list()).status());
  ranges.remote_regions = {0};
  ranges.local_regions = {~uint32_t{0}};
  EXPECT_REASON(Reason::kOutOfBounds, link_.session.read(ranges.list()).status());
  ranges.local_regions = {0};
  EXPECT_OK(must(link_.session.read(ranges.list())).wait(5s));
}

TEST_P(BoundsTest, ArraysOfDifferentLengthAreRefused) {
  Ranges ranges;
  ranges.add(0, 0, 8);
  ranges.add(8, 8, 8);
  ranges.remote.pop_back();
  EXPECT_REASON(Reason::kInvalidArgument, link_.session.read(ranges.list()).status());
  ranges.remote = {0, 8};
  ranges.local_regions = {0};
  EXPECT_REASON(Reason::kInvalidArgument, link_.session.read(ranges.list()).status());
}

TEST_P(BoundsTest, StridedRangeIsCheckedToItsLastPiece) {
  StridedRange range{.bytes = 64, .count = 16, .local_stride = 64, .remote_stride = 4096};
  EXPECT_OK(must(link_.session.read(range)).wait(5s));
  range.remote_offset = 4096 - 64;
  EXPECT_OK(must(link_.session.read(range)).wait(5s));
  range.remote_offset = 4096 - 63;
  EXPECT_REASON(Reason::kOutOfBounds, link_.session.read(range).status());
  range = {.bytes = 8, .count = 3, .local_stride = 64, .remote_stride = kMax / 2 + 1};
  EXPECT_REASON(Reason::kOverflow, link_.session.read(range).status());
  range = {.local_offset = kMax, .bytes = 8, .count = 2, .local_stride = 1};
  EXPECT_REASON(Reason::kOverflow, link_.session.read(range).status());
}

TEST_P(BoundsTest, RangesBeyondTheOptionAreALimit) {
  EngineOptions few = reader_options("few");
  few.max_ranges = 16;
  Link link(few, options("owner-of-few"), path(), 4096);
  StridedRange range{.bytes = 8, .count = 16, .local_stride = 8, .remote_stride = 8};
  EXPECT_OK(must(link.session.read(range)).wait(5s));
  range.count = 17;
  EXPECT_REASON(Reason::kTooManyRanges, link.session.read(range).status());
}

TEST_P(BoundsTest, TransfersBeyondTheOptionAreBusy) {
  EngineOptions few = reader_options("few");
  few.max_transfers = 2;
  Link link(few, options("owner-of-few"), path(), 4096);
  std::optional<Transfer> first(must(link.session.read(whole(64))));
  const Transfer second = must(link.session.read(whole(64)));
  EXPECT_REASON(Reason::kTooManyTransfers, link.session.read(whole(64)).status());
  EXPECT_OK(first->wait(5s));
  first.reset();
  // The progress thread lets go of a posted batch in its own time.
  EXPECT_TRUE(eventually([&] { return link.session.read(whole(64)).ok(); }));
}

using SharedTableTest = BoundsTest;
INSTANTIATE_TEST_SUITE_P(Local, SharedTableTest,
                         ::testing::Values(Path::kShm, Path::kCma, Path::kUnix), path_name);

// T49: a descriptor is believed only as far as the owner's own table confirms it.
TEST_P(SharedTableTest, ForgedDescriptorsAreRefused) {
  const std::array<const Region*, 1> own = {&link_.local};
  const auto session_with = [&](RegionDesc desc) {
    return link_.peer.session(own, std::span(&desc, 1)).status();
  };
  RegionDesc desc = link_.remote.desc;
  EXPECT_OK(session_with(desc));
  desc.bytes += 4096;
  EXPECT_REASON(Reason::kCorrupt, session_with(desc));
  desc = link_.remote.desc;
  desc.nonce ^= 1;
  EXPECT_REASON(Reason::kCorrupt, session_with(desc));
  desc = link_.remote.desc;
  desc.address -= 8;
  EXPECT_REASON(Reason::kCorrupt, session_with(desc));
  desc = link_.remote.desc;
  desc.index = 77;
  EXPECT_REASON(Reason::kNotRegistered, session_with(desc));
  desc = link_.remote.desc;
  desc.generation += 1;
  EXPECT_REASON(Reason::kSuperseded, session_with(desc));
  desc = link_.remote.desc;
  desc.instance.low ^= 1;
  EXPECT_EQ(session_with(desc).code(), Code::kIncompatible);
  desc = link_.remote.desc;
  desc.shareable = !desc.shareable;
  EXPECT_REASON(Reason::kCorrupt, session_with(desc));
}

// T49: an owner's read-only region stays so, whatever a descriptor says.
TEST_P(SharedTableTest, AccessInADescriptorGrantsNothing) {
  const OwnedRegion sealed = make_region(link_.owner, path(), 4096, Access::kReadOnly);
  const std::array<const Region*, 1> own = {&link_.local};
  RegionDesc desc = sealed.desc;
  desc.access = Access::kReadWrite;
  EXPECT_REASON(Reason::kCorrupt, link_.peer.session(own, std::span(&desc, 1)).status());
}

using FarTableTest = BoundsTest;
INSTANTIATE_TEST_SUITE_P(Far, FarTableTest, ::testing::Values(Path::kTcp), path_name);

// T49: where its table cannot be looked at, the owner checks each batch.
TEST_P(FarTableTest, ForgedDescriptorsMoveNoByte) {
  const std::array<const Region*, 1> own = {&link_.local};
  const auto read_with = [&](const RegionDesc& desc, uint64_t offset) {
    auto session = link_.peer.session(own, std::span(&desc, 1));
    if (!session.ok()) return session.status();
    return must(session->read({.remote_offset = offset, .bytes = 8, .count = 1})).wait(5s);
  };
  RegionDesc desc = link_.remote.desc;
  EXPECT_OK(read_with(desc, kBytes - 8));
  desc.bytes += 4096;
  EXPECT_OK(read_with(desc, kBytes - 8));
  EXPECT_REASON(Reason::kOutOfBounds, read_with(desc, kBytes - 7));
  desc = link_.remote.desc;
  desc.index = 77;
  EXPECT_REASON(Reason::kNotRegistered, read_with(desc, 0));
  desc = link_.remote.desc;
  desc.generation += 1;
  EXPECT_REASON(Reason::kSuperseded, read_with(desc, 0));
  desc = link_.remote.desc;
  desc.instance.low ^= 1;
  EXPECT_EQ(read_with(desc, 0).code(), Code::kIncompatible);
}

TEST_P(FarTableTest, AccessInADescriptorGrantsNothing) {
  const OwnedRegion sealed = make_region(link_.owner, path(), 4096, Access::kReadOnly);
  link_.owner.set(sealed, std::byte{0x11});
  const std::array<const Region*, 1> own = {&link_.local};
  RegionDesc desc = sealed.desc;
  desc.access = Access::kReadWrite;
  Session session = must(link_.peer.session(own, std::span(&desc, 1)));
  EXPECT_REASON(Reason::kReadOnly, must(session.write(whole(4096))).wait(5s));
  EXPECT_EQ(link_.owner.first_not(sealed, std::byte{0x11}), kNone);
}

}  // namespace
}  // namespace stagelink::test
