#include "transport/fault/fault_copy_transport.h"

#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

class MemoryCopy final : public CopyTransport {
 public:
  Status copy(std::span<const CopyItem> items, Direction direction) override {
    ++calls;
    for (const CopyItem& item : items) {
      if (item.bytes == 0) continue;
      auto* remote = reinterpret_cast<std::byte*>(item.remote);
      const bool read = direction == Direction::kRead;
      std::memcpy(read ? item.local : remote, read ? remote : item.local, item.bytes);
    }
    return outcome;
  }
  int calls = 0;
  Status outcome;
};

int bits_that_differ(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  int bits = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    bits += std::popcount(static_cast<unsigned>(a[i] ^ b[i]));
  }
  return bits;
}

struct FaultCopyTransportTest : testing::Test {
  FaultCopyTransportTest() : local(1000, std::byte{1}), remote(1000, std::byte{2}) {}
  Status copy_with(uint32_t EngineOptions::*rate, Direction direction) {
    EngineOptions options;
    options.fault_seed = 9;
    if (rate != nullptr) options.*rate = 1'000'000;
    FaultCopyTransport transport(inside, std::make_shared<FaultInjector>(options, metrics),
                                 [this](const Status& why) { cut = why; });
    const CopyItem items[] = {
        {local.data(), reinterpret_cast<uint64_t>(remote.data()), 400, 0},
        {nullptr, 0, 0, 0},
        {local.data() + 400, reinterpret_cast<uint64_t>(remote.data()) + 400, 600, 0}};
    return transport.copy(items, direction);
  }

  FakeMetrics metrics;
  std::shared_ptr<MemoryCopy> inside = std::make_shared<MemoryCopy>();
  std::vector<std::byte> local;
  std::vector<std::byte> remote;
  std::optional<Status> cut;
};

TEST_F(FaultCopyTransportTest, WithoutAFaultItOnlyCopies) {
  EXPECT_TRUE(copy_with(nullptr, Direction::kRead).ok());
  EXPECT_EQ(bits_that_differ(local, remote), 0);
  EXPECT_EQ(metrics.faults, 0U);
}

TEST_F(FaultCopyTransportTest, AFlipSpoilsOneBitOfTheDestinationAndReportsSuccess) {
  EXPECT_TRUE(copy_with(&EngineOptions::fault_flip_ppm, Direction::kRead).ok());
  EXPECT_EQ(bits_that_differ(local, remote), 1);
  EXPECT_EQ(bits_that_differ(remote, std::vector<std::byte>(1000, std::byte{2})), 0);
  EXPECT_EQ(metrics.faults, 1U);
}

TEST_F(FaultCopyTransportTest, AFlipOfAWriteSpoilsTheRemoteSide) {
  EXPECT_TRUE(copy_with(&EngineOptions::fault_flip_ppm, Direction::kWrite).ok());
  EXPECT_EQ(bits_that_differ(local, remote), 1);
  EXPECT_EQ(bits_that_differ(local, std::vector<std::byte>(1000, std::byte{1})), 0);
}

TEST_F(FaultCopyTransportTest, AFailedCopyIsNotFlipped) {
  inside->outcome = Status(Reason::kSuperseded, "gone");
  EXPECT_EQ(copy_with(&EngineOptions::fault_flip_ppm, Direction::kRead).reason(),
            Reason::kSuperseded);
  EXPECT_EQ(bits_that_differ(local, remote), 0);
}

TEST_F(FaultCopyTransportTest, ADropCopiesNothingAndIsTimedOut) {
  EXPECT_EQ(copy_with(&EngineOptions::fault_drop_ppm, Direction::kRead).reason(),
            Reason::kTimedOut);
  EXPECT_EQ(inside->calls, 0);
}

TEST_F(FaultCopyTransportTest, ADelayOnlyDelays) {
  EXPECT_TRUE(copy_with(&EngineOptions::fault_delay_ppm, Direction::kRead).ok());
  EXPECT_EQ(bits_that_differ(local, remote), 0);
  EXPECT_EQ(metrics.faults, 1U);
}

TEST_F(FaultCopyTransportTest, ACutCopiesNothingAndCallsForTheEndOfThePeer) {
  EXPECT_EQ(copy_with(&EngineOptions::fault_cut_ppm, Direction::kWrite).code(), Code::kPeerLost);
  EXPECT_EQ(inside->calls, 0);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(cut->reason(), Reason::kConnectionCut);
}

}  // namespace
}  // namespace stagelink::transport
