#include <algorithm>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "unit/transport/stream/raw_peer.h"
#include "unit/transport/stream/stream_rig.h"
#include "wire/staged.h"

namespace stagelink::transport {
namespace {

using wire::FrameType;

constexpr size_t kMiB = 1 << 20;
constexpr auto kCanary = std::byte{0x5a};

// A victim with one region between two canaries, and a peer that says what it likes.
struct HostilePeerTest : testing::Test {
  HostilePeerTest() : memory(3 * kMiB, kCanary) {
    registry = std::move(*memory::RegionRegistry::create(random_instance_id(), 64));
    poller = std::move(*Poller::create());
    server = std::make_unique<StreamServer>(*poller, *registry, metrics);
    region = *registry->add(memory.data() + kMiB, kMiB, Access::kReadWrite);
    ref = {region->desc.index, region->desc.generation};
    connect();
  }
  void connect() {
    auto [ours, theirs] = socket_pair();
    ASSERT_TRUE(server->serve(std::move(theirs), InstanceId{9, ++peers}).ok());
    peer.emplace(std::move(ours), [this] { step(); });
  }
  void step() { poller->run_once(Duration::zero()); }
  bool is_closed() {
    for (int i = 0; i < 100; ++i) step();
    return server->connections() == 0;
  }
  wire::Outcome outcome_of(FrameType type, const wire::BatchHeader& batch) {
    const uint64_t id = next_id++;
    EXPECT_TRUE(peer->send_batch(type, id, batch));
    if (type == FrameType::kWrite) {
      const std::vector<std::byte> data(std::min<uint64_t>(batch.total_bytes, kMiB), std::byte{1});
      EXPECT_TRUE(data.empty() || peer->send_frame(FrameType::kData, id, data));
      const bool more = batch.total_bytes > data.size();
      EXPECT_TRUE(!more || peer->send_frame(FrameType::kCancel, id, {}));
    }
    const auto done = peer->receive_done();
    EXPECT_TRUE(done.has_value());
    if (!done.has_value()) return {};
    EXPECT_EQ(done->first, id);
    return done->second;
  }
  bool canaries_are_whole() const {
    const auto whole = [](const std::byte& byte) { return byte == kCanary; };
    return std::all_of(memory.begin(), memory.begin() + kMiB, whole) &&
           std::all_of(memory.end() - kMiB, memory.end(), whole);
  }
  uint64_t address(ptrdiff_t offset) const {
    return reinterpret_cast<uint64_t>(memory.data() + kMiB + offset);
  }

  std::vector<std::byte> memory;
  FakeMetrics metrics;
  std::unique_ptr<memory::RegionRegistry> registry;
  std::unique_ptr<Poller> poller;
  std::unique_ptr<StreamServer> server;
  std::shared_ptr<memory::RegionRecord> region;
  wire::RegionRef ref;
  std::optional<RawPeer> peer;
  uint64_t next_id = 1;
  uint64_t peers = 0;
};

TEST_F(HostilePeerTest, RangesOutsideTheRegionAreRefusedAndMoveNothing) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  const std::vector<wire::WireRange> bad = {{0, kMiB - 8, 16}, {0, kMiB, 1},     {0, kMiB + 1, 0},
                                            {0, kMax - 7, 8},  {0, 8, kMax - 7}, {0, 0, kMax}};
  for (const FrameType type : {FrameType::kRead, FrameType::kWrite}) {
    for (const auto& range : bad) {
      const auto outcome = outcome_of(type, batch_of(ref, {range}));
      EXPECT_EQ(outcome.reason, Reason::kOutOfBounds) << range.offset << " + " << range.bytes;
      EXPECT_EQ(metrics.last_failure.exchange(Reason::kOk), Reason::kOutOfBounds);
    }
    // Both sides of the bound.
    EXPECT_EQ(outcome_of(type, batch_of(ref, {{0, kMiB - 8, 8}})).reason, Reason::kOk);
    EXPECT_EQ(outcome_of(type, batch_of(ref, {{0, kMiB, 0}})).reason, Reason::kOk);
  }
  EXPECT_TRUE(canaries_are_whole());
  EXPECT_EQ(region->gate.pins(), 0U);
}

TEST_F(HostilePeerTest, AddressesOutsideEveryRegionAreRefusedAndMoveNothing) {
  for (const FrameType type : {FrameType::kRead, FrameType::kWrite}) {
    for (const auto& [at, bytes] :
         std::vector<std::pair<uint64_t, uint64_t>>{{address(-8), 16},
                                                    {address(kMiB - 8), 16},
                                                    {address(kMiB) + 4096, 64},
                                                    {address(-4096), 0},
                                                    {0, 8}}) {
      const auto outcome = outcome_of(type, batch_by_address({{0, at, bytes}}));
      EXPECT_EQ(outcome.reason, Reason::kNotRegistered) << at << " + " << bytes;
    }
    const auto wrapped =
        outcome_of(type, batch_by_address({{0, address(0), std::numeric_limits<uint64_t>::max()}}));
    EXPECT_EQ(wrapped.reason, Reason::kOverflow);
    EXPECT_EQ(outcome_of(type, batch_by_address({{0, address(8), 8}})).reason, Reason::kOk);
  }
  EXPECT_TRUE(canaries_are_whole());
  EXPECT_EQ(server->connections(), 1U);
}

TEST_F(HostilePeerTest, UnknownRowsAndGenerationsAreToldApart) {
  for (const FrameType type : {FrameType::kRead, FrameType::kWrite}) {
    EXPECT_EQ(outcome_of(type, batch_of({ref.index + 1, 1}, {{0, 0, 8}})).reason,
              Reason::kNotRegistered);
    EXPECT_EQ(outcome_of(type, batch_of({~uint32_t{0}, 1}, {{0, 0, 8}})).reason,
              Reason::kNotRegistered);
    EXPECT_EQ(outcome_of(type, batch_of({ref.index, ref.generation + 1}, {{0, 0, 8}})).reason,
              Reason::kSuperseded);
  }
}

TEST_F(HostilePeerTest, AReadOnlyRegionCannotBeWrittenAndTheConnectionGoesOn) {
  std::vector<std::byte> sealed(kMiB, kCanary);
  const auto record = *registry->add(sealed.data(), sealed.size(), Access::kReadOnly);
  const wire::RegionRef sealed_ref{record->desc.index, record->desc.generation};
  EXPECT_EQ(outcome_of(FrameType::kWrite, batch_of(sealed_ref, {{0, 0, kMiB}})).reason,
            Reason::kReadOnly);
  EXPECT_EQ(std::count(sealed.begin(), sealed.end(), kCanary), static_cast<ptrdiff_t>(kMiB));
  EXPECT_EQ(outcome_of(FrameType::kRead, batch_of(sealed_ref, {{0, 0, kMiB}})).reason, Reason::kOk);
  EXPECT_EQ(record->gate.pins(), 0U);
}

TEST_F(HostilePeerTest, ABatchWithOneBadRangeMovesNothing) {
  const auto batch = batch_of(ref, {{0, 0, 4096}, {0, kMiB, 4096}});
  EXPECT_EQ(outcome_of(FrameType::kWrite, batch).reason, Reason::kOutOfBounds);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), kCanary), static_cast<ptrdiff_t>(3 * kMiB));
}

TEST_F(HostilePeerTest, BrokenFramesEndTheConnection) {
  const std::vector<std::byte> some(100);
  const auto write = batch_of(ref, {{0, 0, 50}});
  const std::vector<std::function<void()>> crimes = {
      [&] { peer->send_bytes(std::vector<std::byte>(24, std::byte{0xff})); },  // No frame.
      [&] { peer->send_frame(FrameType::kData, 5, some); },                    // No write.
      [&] { peer->send_frame(FrameType::kDone, 5, {}); },                      // An answer.
      [&] { peer->send_frame(FrameType::kHello, 5, {}); },                     // Too late.
      [&] { peer->send_frame(FrameType::kRead, 5, some); },                    // No batch.
      [&] { peer->send_frame(FrameType::kCancel, 5, some); },                  // Not empty.
      [&] { peer->send_frame(FrameType::kData, 5, std::vector<std::byte>(kMiB + 1)); },
      [&] {
        peer->send_batch(FrameType::kWrite, 5, write);
        peer->send_frame(FrameType::kData, 5, some);  // 100 bytes for 50.
      },
      [&] {
        peer->send_batch(FrameType::kWrite, 5, write);
        peer->send_batch(FrameType::kWrite, 6, write);  // Before the first is over.
      },
      [&] {
        peer->send_batch(FrameType::kWrite, 5, write);
        peer->send_frame(FrameType::kData, 6, {});  // Of another request.
      }};
  for (size_t i = 0; i < crimes.size(); ++i) {
    metrics.last_failure = Reason::kOk;
    crimes[i]();
    EXPECT_TRUE(is_closed()) << i;
    EXPECT_EQ(metrics.last_failure, Reason::kFrame) << i;
    EXPECT_EQ(region->gate.pins(), 0U) << i;
    connect();
  }
  EXPECT_TRUE(canaries_are_whole());
}

TEST_F(HostilePeerTest, RandomFramesNeitherCrashNorTouchTheCanaries) {
  const uint64_t seed = random_u64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  SplitMix64 random(seed);
  for (int i = 0; i < 20'000; ++i) {
    if (server->connections() == 0) connect();
    wire::BatchHeader batch = batch_of(
        {static_cast<uint32_t>(random.below(3)), random.below(4)},
        {{0, random.below(2) == 0 ? random.next() : random.below(2 * kMiB), random.below(64)}});
    if (random.below(3) == 0) {
      batch.by_address = true;
      batch.regions.clear();
      batch.ranges[0].offset = address(0) + random.below(4 * kMiB) - 2 * kMiB;
    }
    auto payload = wire::encode(batch);
    if (random.below(4) == 0) payload[random.below(payload.size())] ^= std::byte{1};
    if (random.below(8) == 0) payload.resize(random.below(payload.size()));
    auto header = wire::encode(wire::FrameHeader{
        .type =
            static_cast<FrameType>(random.below(20) == 0 ? random.below(16) : 8 + random.below(5)),
        .payload_bytes = static_cast<uint32_t>(payload.size()),
        .request_id = random.below(4)});
    if (random.below(16) == 0) header[random.below(header.size())] ^= std::byte{4};
    peer->send_bytes(header);
    peer->send_bytes(payload);
  }
  peer->close();
  for (int i = 0; i < 100; ++i) step();
  EXPECT_EQ(server->connections(), 0U);
  EXPECT_EQ(region->gate.pins(), 0U);
  EXPECT_TRUE(canaries_are_whole());
}

TEST_F(HostilePeerTest, APeerThatNeverTakesAnswersIsNotReadFromWithoutBound) {
  const auto batch = batch_of(ref, {{0, 0, kMiB}});
  size_t sent = 0;
  const auto frame = wire::encode(batch);
  // send_frame() fails once neither the server nor the socket takes more.
  while (sent < 20'000 && peer->send_frame(FrameType::kRead, sent + 1, frame)) ++sent;
  EXPECT_LT(sent, 20'000U);
  EXPECT_EQ(server->connections(), 1U);
  EXPECT_LE(region->gate.pins(), 1U);
}

TEST_F(HostilePeerTest, AnAnnouncementAloneDoesNotReserveMemory) {
  const auto header = wire::encode(wire::FrameHeader{
      .type = FrameType::kRead, .payload_bytes = wire::kMaxBatchBytes, .request_id = 1});
  ASSERT_TRUE(peer->send_bytes(header));
  ASSERT_TRUE(peer->send_bytes(std::vector<std::byte>(10)));
  EXPECT_EQ(server->connections(), 1U);  // Silent, and no harm done: others are served.
  connect();
  EXPECT_EQ(outcome_of(FrameType::kRead, batch_of(ref, {{0, 0, 8}})).reason, Reason::kOk);
}

TEST_F(HostilePeerTest, APeerHasABoundedNumberOfConnections) {
  std::vector<UniqueFd> ends;
  for (size_t i = 0; i <= StreamServer::kMaxConnectionsPerPeer; ++i) {
    auto [ours, theirs] = socket_pair();
    ends.push_back(std::move(ours));
    const Status status = server->serve(std::move(theirs), InstanceId{77, 77});
    const bool fits = i < StreamServer::kMaxConnectionsPerPeer;
    EXPECT_EQ(status.code(), fits ? Code::kOk : Code::kLimit) << i;
  }
}

// The other way round: an owner that lies to an initiator.
struct HostileOwnerTest : testing::Test, StreamChannel::Owner {
  explicit HostileOwnerTest(RigKind kind = RigKind::kPlain) : local(4096, kCanary) {
    poller = std::move(*Poller::create());
    auto [theirs_traits, our_traits] = traits_of(kind);
    area = std::move(theirs_traits.staging);
    auto [ours, theirs] = socket_pair();
    owner.emplace(std::move(theirs), [this] { poller->run_once(Duration::zero()); });
    channel = StreamChannel::create(*poller, std::move(ours), *this, std::move(our_traits));
  }
  ~HostileOwnerTest() override { channel->close(Status(Reason::kClosed, "test over")); }
  void on_lost(StreamChannel&, const Status& why) override { lost = why; }
  uint64_t begin(TestRequest& request, Direction direction) {
    prepare(request, direction, {{local.data() + 1024, 0, 1024, 0}}, {{1, 1}});
    channel->post(request);
    return owner->receive_frame()->header.request_id;
  }
  void expect_lost(const TestRequest& request) {
    for (int i = 0; i < 100; ++i) poller->run_once(Duration::zero());
    EXPECT_EQ(request.ended, 1);
    EXPECT_EQ(request.status.code(), Code::kPeerLost) << request.status.to_string();
    ASSERT_TRUE(lost.has_value());
    EXPECT_EQ(lost->reason(), Reason::kFrame);
    EXPECT_EQ(std::count(local.begin(), local.begin() + 1024, kCanary), 1024);
    EXPECT_EQ(std::count(local.begin() + 2048, local.end(), kCanary), 2048);
  }

  std::vector<std::byte> local;
  std::unique_ptr<Poller> poller;
  std::shared_ptr<StreamChannel> channel;
  std::optional<StagingArea> area;
  std::optional<RawPeer> owner;
  std::optional<Status> lost;
};

TEST_F(HostileOwnerTest, DataBeyondTheRequestIsNotPlaced) {
  TestRequest request;
  const uint64_t id = begin(request, Direction::kRead);
  owner->send_frame(FrameType::kData, id, std::vector<std::byte>(1000));
  owner->send_frame(FrameType::kData, id, std::vector<std::byte>(25));
  expect_lost(request);
}

TEST_F(HostileOwnerTest, SuccessWithMissingBytesIsNoSuccess) {
  TestRequest request;
  const uint64_t id = begin(request, Direction::kRead);
  owner->send_frame(FrameType::kData, id, std::vector<std::byte>(1023));
  owner->send_frame(FrameType::kDone, id, wire::encode(wire::Outcome{}));
  expect_lost(request);
}

TEST_F(HostileOwnerTest, AnswersToRequestsThatNobodyMadeEndTheConnection) {
  TestRequest request;
  const uint64_t id = begin(request, Direction::kRead);
  owner->send_frame(FrameType::kDone, id + 1, wire::encode(wire::Outcome{}));
  expect_lost(request);
}

TEST_F(HostileOwnerTest, DataForAWriteEndsTheConnection) {
  TestRequest request;
  const uint64_t id = begin(request, Direction::kWrite);
  owner->send_frame(FrameType::kData, id, std::vector<std::byte>(10));
  expect_lost(request);
}

TEST_F(HostileOwnerTest, RequestsOfAnInitiatorEndTheConnection) {
  TestRequest request;
  const uint64_t id = begin(request, Direction::kRead);
  owner->send_frame(FrameType::kCancel, id, {});
  expect_lost(request);
}

struct StagingOwnerTest : HostileOwnerTest {
  StagingOwnerTest() : HostileOwnerTest(RigKind::kStaged) {
    std::fill(area->from_owner().begin(), area->from_owner().end(), std::byte{1});
  }
};

TEST_F(StagingOwnerTest, BytesBeyondTheRequestAreNotPlaced) {
  TestRequest request;
  const uint64_t id = begin(request, Direction::kRead);
  owner->send_frame(FrameType::kStaged, id, wire::encode_staged(1000));
  owner->send_frame(FrameType::kStaged, id, wire::encode_staged(25));
  expect_lost(request);
}

TEST_F(StagingOwnerTest, BytesForAWriteEndTheConnection) {
  TestRequest request;
  const uint64_t id = begin(request, Direction::kWrite);
  owner->send_frame(FrameType::kStaged, id, wire::encode_staged(10));
  expect_lost(request);
}

TEST_F(StagingOwnerTest, TakingWhatWasNotPutEndsTheConnection) {
  TestRequest request;
  (void)begin(request, Direction::kRead);
  owner->send_frame(FrameType::kStagedAck, 0, wire::encode_staged(1));
  expect_lost(request);
}

TEST_F(StagingOwnerTest, BytesOfACancelledReadGoNowhere) {
  TestRequest request;
  const uint64_t id = begin(request, Direction::kRead);
  channel->cancel(request, Status(Reason::kCancelled, "test"));
  owner->send_frame(FrameType::kStaged, id, wire::encode_staged(1024));
  owner->send_frame(FrameType::kDone, id, wire::encode(wire::Outcome{Reason::kCancelled, ""}));
  EXPECT_EQ(request.status.reason(), Reason::kCancelled);
  EXPECT_EQ(std::count(local.begin(), local.end(), kCanary), 4096);
  EXPECT_FALSE(lost.has_value());
}

TEST_F(HostileOwnerTest, TheReasonOfTheOwnerReachesTheRequest) {
  TestRequest request;
  const uint64_t id = begin(request, Direction::kRead);
  owner->send_frame(FrameType::kDone, id,
                    wire::encode(wire::Outcome{Reason::kReadOnly, "look here"}));
  for (int i = 0; i < 100; ++i) poller->run_once(Duration::zero());
  EXPECT_EQ(request.ended, 1);
  EXPECT_EQ(request.status.reason(), Reason::kReadOnly);
  EXPECT_NE(request.status.message().find("look here"), std::string_view::npos);
  EXPECT_FALSE(lost.has_value());
}

}  // namespace
}  // namespace stagelink::transport
