#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memfd.h"
#include "memory/segment.h"
#include "unit/memory/in_child.h"
#include "wire/table_layout.h"

namespace stagelink::memory {
namespace {

constexpr InstanceId kInstance{0xaaaa, 0xbbbb};

// An owner's segment, and what its descriptor says.
struct Owned {
  Segment segment;
  RegionDesc desc;
  UniqueFd fd;  // As a peer would have received it.
};

Owned own(size_t bytes, Access access = Access::kReadWrite) {
  SegmentOptions options;
  options.access = access;
  auto segment = Segment::create(bytes, options, kInstance);
  if (!segment.ok()) ADD_FAILURE() << segment.status().to_string();
  RegionDesc desc;
  desc.instance = kInstance;
  desc.bytes = bytes;
  desc.nonce = segment->nonce();
  desc.shareable = true;
  desc.access = access;
  UniqueFd fd(::fcntl(segment->fd(), F_DUPFD_CLOEXEC, 0));
  return {*std::move(segment), desc, std::move(fd)};
}

// A memfd of a hostile peer. `size` 0 leaves it unreserved at `bytes`.
UniqueFd forged(size_t bytes, int seals, bool reserved = true) {
  UniqueFd fd(::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (reserved) {
    EXPECT_EQ(::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)), 0);
  }
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

Reason reason_of_map(const UniqueFd& fd, const RegionDesc& desc) {
  return MappedSegment::map(fd, desc).status().reason();
}

TEST(MappedSegmentTest, AnotherProcessReadsAndWritesTheOwnersBytes) {
  Owned owned = own(3 << 20);
  std::memcpy(owned.segment.bytes().data() + (3 << 20) - 5, "owner", 5);
  const int result = in_child([&] {
    auto mapped = MappedSegment::map(owned.fd, owned.desc);
    if (!mapped.ok()) return 1;
    if (mapped->bytes().size() != size_t{3} << 20 || !mapped->writable()) return 2;
    if (mapped->bytes().data() == owned.segment.bytes().data()) return 3;
    if (std::memcmp(mapped->bytes().data() + (3 << 20) - 5, "owner", 5) != 0) return 4;
    std::memcpy(mapped->bytes().data() + 100, "peer", 4);
    return 0;
  });
  ASSERT_EQ(result, 0);
  EXPECT_EQ(std::memcmp(owned.segment.bytes().data() + 100, "peer", 4), 0);
}

TEST(MappedSegmentTest, ReadOnlySegmentIsMappedWithoutWriting) {
  Owned owned = own(8192, Access::kReadOnly);
  auto mapped = MappedSegment::map(owned.fd, owned.desc);
  ASSERT_TRUE(mapped.ok()) << mapped.status().to_string();
  EXPECT_FALSE(mapped->writable());
  owned.segment.bytes()[4096] = std::byte{3};
  EXPECT_EQ(mapped->bytes()[4096], std::byte{3});
  // The kernel says whether it could write there, without a signal.
  const UniqueFd zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::read(zeros.get(), mapped->bytes().data(), 1), -1);
  EXPECT_EQ(errno, EFAULT);
}

TEST(MappedSegmentTest, DescriptorThatClaimsWritingOfAReadOnlySegmentIsCorrupt) {
  Owned owned = own(8192, Access::kReadOnly);
  owned.desc.access = Access::kReadWrite;
  EXPECT_EQ(reason_of_map(owned.fd, owned.desc), Reason::kCorrupt);
}

TEST(MappedSegmentTest, MemoryThatCouldShrinkIsCorrupt) {
  Owned owned = own(8192);
  for (const int seals : {0, F_SEAL_GROW, F_SEAL_SHRINK}) {
    const UniqueFd fd = forged(16384, seals);
    auto refused = MappedSegment::map(fd, owned.desc);
    EXPECT_EQ(refused.status().reason(), Reason::kCorrupt) << seals;
    EXPECT_NE(refused.status().message().find("seals"), std::string_view::npos);
  }
}

TEST(MappedSegmentTest, FileOnDiskIsCorrupt) {
  Owned owned = own(4096);
  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(reason_of_map(file, owned.desc), Reason::kCorrupt);
  const UniqueFd none;
  EXPECT_EQ(reason_of_map(none, owned.desc), Reason::kCorrupt);
}

TEST(MappedSegmentTest, MemoryWithHolesIsCorrupt) {
  Owned owned = own(8192);
  const UniqueFd fd = forged(16384, F_SEAL_SHRINK | F_SEAL_GROW, false);
  auto refused = MappedSegment::map(fd, owned.desc);
  EXPECT_EQ(refused.status().reason(), Reason::kCorrupt);
  EXPECT_NE(refused.status().message().find("holes"), std::string_view::npos);
}

TEST(MappedSegmentTest, MemoryWithoutTrailerIsCorrupt) {
  Owned owned = own(8192);
  const UniqueFd fd = forged(16384, F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_EQ(reason_of_map(fd, owned.desc), Reason::kCorrupt);
}

TEST(MappedSegmentTest, SmallerFileThanTheDescriptorSaysIsCorrupt) {
  Owned owned = own(8192);
  owned.desc.bytes = 8193;  // The next page would have to hold data and the one after the trailer.
  EXPECT_EQ(reason_of_map(owned.fd, owned.desc), Reason::kCorrupt);
  owned.desc.bytes = 8191;  // Same pages: only the trailer tells.
  EXPECT_EQ(reason_of_map(owned.fd, owned.desc), Reason::kCorrupt);
}

TEST(MappedSegmentTest, AbsurdSizesAreCorrupt) {
  Owned owned = own(8192);
  for (const uint64_t bytes : {uint64_t{0}, ~uint64_t{0}, ~uint64_t{0} - 4095, uint64_t{1} << 63}) {
    owned.desc.bytes = bytes;
    EXPECT_EQ(reason_of_map(owned.fd, owned.desc), Reason::kCorrupt) << bytes;
  }
}

TEST(MappedSegmentTest, AnotherNonceIsSuperseded) {
  Owned owned = own(8192);
  ++owned.desc.nonce;
  EXPECT_EQ(reason_of_map(owned.fd, owned.desc), Reason::kSuperseded);
}

TEST(MappedSegmentTest, AnotherInstanceIsCorrupt) {
  Owned owned = own(8192);
  ++owned.desc.instance.low;
  EXPECT_EQ(reason_of_map(owned.fd, owned.desc), Reason::kCorrupt);
}

TEST(MappedSegmentTest, SegmentOfHugePagesMapsTheSame) {
  SegmentOptions options;
  options.huge_pages = Effort::kTry;
  auto segment = Segment::create(5 << 20, options, kInstance);
  ASSERT_TRUE(segment.ok());
  segment->bytes()[(5 << 20) - 1] = std::byte{42};
  RegionDesc desc;
  desc.instance = kInstance;
  desc.bytes = 5 << 20;
  desc.nonce = segment->nonce();
  const UniqueFd fd(::fcntl(segment->fd(), F_DUPFD_CLOEXEC, 0));
  auto mapped = MappedSegment::map(fd, desc);
  ASSERT_TRUE(mapped.ok()) << mapped.status().to_string();
  EXPECT_EQ(mapped->bytes()[(5 << 20) - 1], std::byte{42});
}

TEST(MappedSegmentTest, MappingOutlivesOwnerAndFd) {
  auto owned = std::make_unique<Owned>(own(8192));
  owned->segment.bytes()[17] = std::byte{5};
  auto mapped = MappedSegment::map(owned->fd, owned->desc);
  ASSERT_TRUE(mapped.ok());
  owned.reset();
  EXPECT_EQ(mapped->bytes()[17], std::byte{5});
}

TEST(SharedPagesTest, BothSidesSeeTheSameBytes) {
  auto pages = SharedPages::create("stagelink-test", 5000, SharedPages::Peers::kMayWrite);
  ASSERT_TRUE(pages.ok());
  EXPECT_GE(pages->bytes().size(), 5000U);
  auto peer = SharedPages::open(UniqueFd(::dup(pages->fd())), 5000, true);
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  *peer->at<uint64_t>(4096) = 77;
  EXPECT_EQ(*pages->at<uint64_t>(4096), 77U);
}

TEST(SharedPagesTest, ReadOnlyPagesCannotBeOpenedForWriting) {
  auto pages = SharedPages::create("stagelink-test", 4096, SharedPages::Peers::kMayRead);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(SharedPages::open(UniqueFd(::dup(pages->fd())), 4096, true).status().reason(),
            Reason::kCorrupt);
  EXPECT_TRUE(SharedPages::open(UniqueFd(::dup(pages->fd())), 4096, false).ok());
}

TEST(SharedPagesTest, ForeignPagesAreCheckedForSizeAndSeals) {
  const int good = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_TRUE(SharedPages::open(forged(4096, good), 4096, false).ok());
  EXPECT_EQ(SharedPages::open(forged(4096, good), 4097, false).status().reason(), Reason::kCorrupt);
  EXPECT_EQ(SharedPages::open(forged(4096, F_SEAL_GROW), 4096, false).status().reason(),
            Reason::kCorrupt);
  EXPECT_EQ(SharedPages::open(UniqueFd(), 4096, false).status().reason(), Reason::kCorrupt);
  EXPECT_EQ(SharedPages::open(forged(4096, good), 0, false).status().reason(), Reason::kCorrupt);
}

TEST(SharedPagesTest, CloseFdKeepsTheMapping) {
  auto pages = SharedPages::create("stagelink-test", 4096, SharedPages::Peers::kMayRead);
  ASSERT_TRUE(pages.ok());
  *pages->at<uint32_t>() = 5;
  pages->close_fd();
  EXPECT_EQ(pages->fd(), -1);
  EXPECT_EQ(*pages->at<uint32_t>(), 5U);
}

TEST(SharedPagesTest, ZeroBytesIsInvalidArgument) {
  EXPECT_EQ(
      SharedPages::create("stagelink-test", 0, SharedPages::Peers::kMayRead).status().reason(),
      Reason::kInvalidArgument);
}

}  // namespace
}  // namespace stagelink::memory
