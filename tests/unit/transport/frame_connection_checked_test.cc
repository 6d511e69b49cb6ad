// Control connections whose frames carry sums.

#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "transport/frame_connection.h"
#include "unit/transport/flip_relay.h"
#include "wire/frame_sum.h"

namespace stagelink::transport {
namespace {

using wire::FrameType;

std::pair<UniqueFd, UniqueFd> socket_pair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// One end: remembers what it was handed.
struct End final : FrameConnection::Owner {
  End(Poller& poller, UniqueFd fd)
      : connection(std::move(*FrameConnection::create(poller, std::move(fd), *this))) {}
  Status on_frame(FrameConnection&, const wire::FrameHeader& header,
                  std::span<const std::byte> payload, std::vector<UniqueFd>& fds) override {
    types.push_back(header.type);
    payloads.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
    fds_taken += fds.size();
    return {};
  }
  void on_closed(FrameConnection&, const Status& why) override {
    closed = why;
    connection.reset();
  }

  std::unique_ptr<FrameConnection> connection;
  std::vector<FrameType> types;
  std::vector<std::string> payloads;
  size_t fds_taken = 0;
  std::optional<Status> closed;
};

struct RelayedEnds {
  explicit RelayedEnds(std::optional<FlipRelay::Flip> flip = std::nullopt)
      : poller(std::move(*Poller::create())) {
    auto [left, near] = socket_pair();
    auto [right, far] = socket_pair();
    first.emplace(*poller, std::move(left));
    second.emplace(*poller, std::move(right));
    relay.emplace(std::move(near), std::move(far), flip);
    first->connection->check_frames();
    second->connection->check_frames();
  }
  void step() {
    for (int i = 0; i < 8; ++i) {
      poller->run_once(Duration::zero());
      relay->step();
    }
  }

  std::unique_ptr<Poller> poller;
  std::optional<End> first;
  std::optional<End> second;
  std::optional<FlipRelay> relay;
};

TEST(CheckedFrameConnectionTest, CarriesFramesInBothDirections) {
  RelayedEnds ends;
  const std::string longest(wire::kMaxControlBytes, 'x');
  ASSERT_TRUE(ends.first->connection->send(FrameType::kPing, 1, {}).ok());
  ASSERT_TRUE(ends.first->connection->send(FrameType::kNotify, 0, bytes_of("payload")).ok());
  ASSERT_TRUE(ends.first->connection->send(FrameType::kNotify, 0, bytes_of(longest)).ok());
  ASSERT_TRUE(ends.second->connection->send(FrameType::kPong, 1, {}).ok());
  for (int i = 0; i < 20; ++i) ends.step();
  EXPECT_EQ(ends.second->payloads, (std::vector<std::string>{"", "payload", longest}));
  EXPECT_EQ(ends.first->types, std::vector<FrameType>{FrameType::kPong});
  EXPECT_FALSE(ends.second->closed.has_value());
}

TEST(CheckedFrameConnectionTest, DescriptorsComeAlong) {
  const auto poller = std::move(*Poller::create());
  auto [left, right] = socket_pair();
  End first(*poller, std::move(left));
  End second(*poller, std::move(right));
  first.connection->check_frames();
  second.connection->check_frames();
  std::vector<UniqueFd> fds;
  fds.emplace_back(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_TRUE(first.connection->send(FrameType::kRegion, 3, bytes_of("x"), std::move(fds)).ok());
  for (int i = 0; i < 4; ++i) poller->run_once(Duration::zero());
  EXPECT_EQ(second.fds_taken, 1U);
  EXPECT_FALSE(second.closed.has_value());
}

TEST(CheckedFrameConnectionTest, NoFlippedBitIsDelivered) {
  const std::string_view payload = "done with block 4711";
  const size_t bytes = wire::kFrameHeaderBytes + payload.size() + wire::kTrailerBytes;
  for (uint64_t bit = 0; bit < bytes * 8; ++bit) {
    RelayedEnds ends(FlipRelay::Flip{0, bit});
    ASSERT_TRUE(ends.first->connection->send(FrameType::kNotify, 5, bytes_of(payload)).ok());
    ends.step();
    ASSERT_TRUE(ends.second->payloads.empty()) << bit;
    ASSERT_TRUE(ends.second->closed.has_value()) << bit;
    ASSERT_EQ(ends.second->closed->reason(), Reason::kChecksum) << bit;
  }
}

TEST(CheckedFrameConnectionTest, FramesBeforeItAreDelivered) {
  const uint64_t second_frame = wire::kFrameHeaderBytes + wire::kTrailerBytes;
  RelayedEnds ends(FlipRelay::Flip{0, second_frame * 8});
  ASSERT_TRUE(ends.first->connection->send(FrameType::kPing, 1, {}).ok());
  ASSERT_TRUE(ends.first->connection->send(FrameType::kPing, 2, {}).ok());
  ends.step();
  EXPECT_EQ(ends.second->types.size(), 1U);
  EXPECT_EQ(ends.second->closed->reason(), Reason::kChecksum);
}

}  // namespace
}  // namespace stagelink::transport
