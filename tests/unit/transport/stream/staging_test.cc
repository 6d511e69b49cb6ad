#include "transport/stream/staging.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "unit/transport/stream/raw_peer.h"
#include "unit/transport/stream/stream_rig.h"
#include "wire/staged.h"

namespace stagelink::transport {
namespace {

using wire::FrameType;

constexpr size_t kHalf = StagingArea::kHalfBytes;
constexpr size_t kMiB = 1 << 20;
constexpr size_t kPiece = 256;

TEST(StagingAreaTest, OnlyAFileWhoseSizeIsSettledIsMapped) {
  const auto open = [](off_t bytes, int seals) {
    UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(fd.get(), bytes), 0);
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return StagingArea::open(std::move(fd)).status().reason();
  };
  constexpr off_t kBytes = 2 * kHalf;
  EXPECT_EQ(open(kBytes, F_SEAL_SHRINK | F_SEAL_GROW), Reason::kOk);
  EXPECT_EQ(open(kBytes - 1, F_SEAL_SHRINK | F_SEAL_GROW), Reason::kCorrupt);
  EXPECT_EQ(open(kBytes, F_SEAL_GROW), Reason::kCorrupt);
  EXPECT_EQ(open(kBytes, F_SEAL_SHRINK), Reason::kCorrupt);
  EXPECT_EQ(open(kBytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), Reason::kCorrupt);
  EXPECT_EQ(StagingArea::open(UniqueFd(::open("/dev/null", O_RDWR))).status().reason(),
            Reason::kCorrupt);
}

// Both ends, without the socket between them.
struct StagingTest : testing::Test {
  StagingTest() : source(4 * kHalf), target(source.size()), random(random_u64()) {
    auto [owners, initiators] = traits_of(RigKind::kStaged);
    owner.emplace(*std::move(owners.staging), Staging::End::kOwner);
    initiator.emplace(*std::move(initiators.staging), Staging::End::kInitiator);
    fill_random(source, random);
    from.add(source.data(), source.size());
    to.add(target.data(), target.size());
  }
  std::vector<std::byte> source;
  std::vector<std::byte> target;
  SplitMix64 random;
  PieceList from;
  PieceList to;
  std::optional<Staging> owner;
  std::optional<Staging> initiator;
  FrameSender frames{false};
};

TEST_F(StagingTest, BytesGoAroundTheEndAndArriveInOrder) {
  while (from.left() > 0) {
    const size_t sent = owner->send(frames, 1, from, 1 + random.below(100'000));
    ASSERT_GT(sent, 0U);
    initiator->receive(frames, &to, static_cast<uint32_t>(sent));
    ASSERT_TRUE(owner->acknowledge(static_cast<uint32_t>(sent)));
  }
  EXPECT_TRUE(source == target);
}

TEST_F(StagingTest, AFullHalfTakesNoMoreAndGoesOnWhenSomeIsTaken) {
  size_t put = 0;
  while (const size_t sent = owner->send(frames, 1, from, kHalf)) put += sent;
  EXPECT_EQ(put, kHalf);
  EXPECT_EQ(from.left(), source.size() - put);
  EXPECT_TRUE(owner->acknowledge(1000));
  EXPECT_EQ(owner->send(frames, 1, from, 1001), 0U);
  EXPECT_EQ(owner->send(frames, 1, from, 1000), 1000U);
}

TEST_F(StagingTest, NoMoreCanBeTakenThanWasPut) {
  EXPECT_FALSE(owner->acknowledge(1));
  ASSERT_EQ(owner->send(frames, 1, from, 1000), 1000U);
  EXPECT_FALSE(owner->acknowledge(1001));
  EXPECT_TRUE(owner->acknowledge(1000));
  EXPECT_FALSE(owner->acknowledge(1));
}

TEST_F(StagingTest, TheOtherEndIsToldBeforeItsHalfIsFull) {
  const size_t before = frames.queued_bytes();
  size_t taken = 0;
  while (frames.queued_bytes() == before && taken < 2 * kHalf) {
    initiator->receive(frames, nullptr, 1000);
    taken += 1000;
  }
  EXPECT_LE(taken, kHalf / 2);
  EXPECT_EQ(to.left(), target.size());
}

// An owner with a staging area, and a peer that says what it likes.
struct StagedPeerTest : testing::Test {
  StagedPeerTest() : memory(kMiB, std::byte{0x5a}) {
    registry = std::move(*memory::RegionRegistry::create(random_instance_id(), 64));
    poller = std::move(*Poller::create());
    server = std::make_unique<StreamServer>(*poller, *registry, metrics);
    region = *registry->add(memory.data(), memory.size(), Access::kReadWrite);
    connect(RigKind::kStaged);
  }
  void connect(RigKind kind) {
    auto [owners, ours] = traits_of(kind);
    area = std::move(ours.staging);
    auto [near, far] = socket_pair();
    ASSERT_TRUE(server->serve(std::move(far), InstanceId{9, ++peers}, std::move(owners)).ok());
    peer.emplace(std::move(near), [this] { poller->run_once(Duration::zero()); });
  }
  // 256 B, every other piece.
  wire::BatchHeader batch(size_t pieces) const {
    std::vector<wire::WireRange> ranges;
    for (size_t i = 0; i < pieces; ++i) ranges.push_back({0, 2 * i * kPiece, kPiece});
    return batch_of({region->desc.index, region->desc.generation}, std::move(ranges));
  }
  bool is_closed() {
    for (int i = 0; i < 100; ++i) poller->run_once(Duration::zero());
    return server->connections() == 0;
  }

  std::vector<std::byte> memory;
  FakeMetrics metrics;
  std::unique_ptr<memory::RegionRegistry> registry;
  std::unique_ptr<Poller> poller;
  std::unique_ptr<StreamServer> server;
  std::shared_ptr<memory::RegionRecord> region;
  std::optional<StagingArea> area;
  std::optional<RawPeer> peer;
  uint64_t peers = 0;
};

TEST_F(StagedPeerTest, SmallPiecesPassThroughTheAreaAndOthersThroughTheSocket) {
  ASSERT_TRUE(peer->send_batch(FrameType::kRead, 1, batch(64)));
  const auto frame = peer->receive_frame();
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.type, FrameType::kStaged);
  EXPECT_EQ(*wire::decode_staged(frame->payload), 64 * kPiece);
  EXPECT_EQ(std::memcmp(area->from_owner().data(), memory.data(), 64 * kPiece), 0);
  EXPECT_EQ(peer->receive_frame()->header.type, FrameType::kDone);
  ASSERT_TRUE(
      peer->send_batch(FrameType::kRead, 2, batch_of({region->desc.index, 1}, {{0, 0, kMiB}})));
  EXPECT_EQ(peer->receive_frame()->header.type, FrameType::kData);
}

// Nobody waits for a peer that takes nothing: what finds no room goes through the socket.
TEST_F(StagedPeerTest, APeerThatNeverSaysWhatItTookGetsItsBytesAllTheSame) {
  size_t staged = 0;
  size_t plain = 0;
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(peer->send_batch(FrameType::kRead, id, batch(kMiB / kPiece / 2)));
    while (auto frame = peer->receive_frame()) {
      if (frame->header.type == FrameType::kStaged) staged += *wire::decode_staged(frame->payload);
      if (frame->header.type == FrameType::kData) plain += frame->payload.size();
      if (frame->header.type == FrameType::kDone) break;
    }
  }
  EXPECT_EQ(staged, kHalf);
  EXPECT_EQ(plain, 3 * kMiB / 2 - kHalf);
}

TEST_F(StagedPeerTest, BytesInTheAreaAreWritten) {
  std::fill_n(area->from_initiator().begin(), 8 * kPiece, std::byte{7});
  ASSERT_TRUE(peer->send_batch(FrameType::kWrite, 1, batch(8)));
  ASSERT_TRUE(peer->send_frame(FrameType::kStaged, 1, wire::encode_staged(8 * kPiece)));
  EXPECT_EQ(peer->receive_done()->second.reason, Reason::kOk);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{7}), ptrdiff_t{8 * kPiece});
  EXPECT_EQ(memory[kPiece], std::byte{0x5a});
}

TEST_F(StagedPeerTest, ARefusedWriteTakesNothingFromTheAreaAndStaysInStep) {
  auto bad = batch(8);
  bad.ranges.back().offset = kMiB;
  ASSERT_TRUE(peer->send_batch(FrameType::kWrite, 1, bad));
  ASSERT_TRUE(peer->send_frame(FrameType::kStaged, 1, wire::encode_staged(8 * kPiece)));
  EXPECT_EQ(peer->receive_done()->second.reason, Reason::kOutOfBounds);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0x5a}), ptrdiff_t{kMiB});
  std::fill_n(area->from_initiator().begin() + 8 * kPiece, kPiece, std::byte{9});
  ASSERT_TRUE(peer->send_batch(FrameType::kWrite, 2, batch(1)));
  ASSERT_TRUE(peer->send_frame(FrameType::kStaged, 2, wire::encode_staged(kPiece)));
  EXPECT_EQ(peer->receive_done()->second.reason, Reason::kOk);
  EXPECT_EQ(memory[0], std::byte{9});
}

TEST_F(StagedPeerTest, LiesAboutTheAreaEndTheConnection) {
  const std::vector<std::function<void()>> lies = {
      [&] { (void)peer->send_frame(FrameType::kStaged, 1, wire::encode_staged(8)); },
      [&] { (void)peer->send_frame(FrameType::kStagedAck, 0, wire::encode_staged(1)); },
      [&] {
        (void)peer->send_batch(FrameType::kWrite, 1, batch(8));
        (void)peer->send_frame(FrameType::kStaged, 1, wire::encode_staged(8 * kPiece + 1));
      },
      [&] {
        (void)peer->send_batch(FrameType::kWrite, 1, batch(kHalf / kPiece));
        (void)peer->send_frame(FrameType::kStaged, 1, wire::encode_staged(kHalf + 1));
      },
      [&] {
        (void)peer->send_batch(FrameType::kWrite, 1, batch(8));
        (void)peer->send_frame(FrameType::kStaged, 1, std::vector<std::byte>(4));  // Zero.
      },
      [&] {
        (void)peer->send_batch(FrameType::kWrite, 1, batch(8));
        (void)peer->send_frame(FrameType::kStaged, 1, std::vector<std::byte>(3));
      },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    if (i > 0) connect(RigKind::kStaged);
    lies[i]();
    EXPECT_TRUE(is_closed()) << i;
    EXPECT_EQ(metrics.last_failure.exchange(Reason::kOk), Reason::kFrame) << i;
  }
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0x5a}), ptrdiff_t{kMiB});
}

TEST_F(StagedPeerTest, WithoutAnAreaNothingIsStaged) {
  peer.reset();
  ASSERT_TRUE(is_closed());
  for (const FrameType type : {FrameType::kStaged, FrameType::kStagedAck}) {
    connect(RigKind::kPlain);
    (void)peer->send_batch(FrameType::kWrite, 1, batch(8));
    (void)peer->send_frame(type, 1, wire::encode_staged(8));
    EXPECT_TRUE(is_closed());
  }
}

TEST_F(StagedPeerTest, RangesOfAGroupThatLeaveTheRegionMoveNothing) {
  auto strided = batch(64);
  strided.ranges.clear();
  strided.grouped.groups = {{0, 64, false, kMiB - 63 * 2 * kPiece, kPiece, 2 * kPiece}};
  auto scattered = batch(3);
  scattered.ranges.clear();
  scattered.grouped = {{{0, 3, true, 0, kPiece, kPiece}}, {1, -1}};
  auto wrapping = batch(64);
  wrapping.ranges.clear();
  wrapping.grouped.groups = {{0, 64, false, 0, kPiece, ~uint64_t{0} - 7}};
  uint64_t id = 0;
  for (const auto& bad : {strided, scattered, wrapping}) {
    for (const FrameType type : {FrameType::kRead, FrameType::kWrite}) {
      ASSERT_TRUE(peer->send_batch(type, ++id, bad));
      if (type == FrameType::kWrite) {
        ASSERT_TRUE(peer->send_frame(FrameType::kCancel, id, {}));
      }
      EXPECT_EQ(peer->receive_done()->second.reason, Reason::kOutOfBounds);
    }
  }
  strided.grouped.groups[0].offset -= kPiece;  // Its last range ends with the region.
  ASSERT_TRUE(peer->send_batch(FrameType::kRead, ++id, strided));
  EXPECT_EQ(peer->receive_done()->second.reason, Reason::kOk);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0x5a}), ptrdiff_t{kMiB});
}

}  // namespace
}  // namespace stagelink::transport
