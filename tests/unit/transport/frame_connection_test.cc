#include "transport/frame_connection.h"

#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "transport/socket_io.h"

namespace stagelink::transport {
namespace {

using wire::FrameType;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto raw = std::as_bytes(std::span(text));
  return {raw.begin(), raw.end()};
}

UniqueFd some_fd() { return UniqueFd(::memfd_create("test", MFD_CLOEXEC)); }

struct Received {
  wire::FrameHeader header;
  std::vector<std::byte> payload;
  std::vector<UniqueFd> fds;
};

// One connection, and the other end as a bare socket.
struct FrameConnectionTest : testing::Test, FrameConnection::Owner {
  FrameConnectionTest() : poller(std::move(*Poller::create())) {
    int fds[2];
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds);
    peer.reset(fds[1]);
    connection = std::move(*FrameConnection::create(*poller, UniqueFd(fds[0]), *this));
  }
  Status on_frame(FrameConnection& from, const wire::FrameHeader& header,
                  std::span<const std::byte> payload, std::vector<UniqueFd>& fds) override {
    EXPECT_EQ(&from, connection.get());
    received.push_back({header, {payload.begin(), payload.end()}, std::move(fds)});
    if (then) return then();
    return {};
  }
  void on_closed(FrameConnection&, const Status& why) override {
    EXPECT_FALSE(closed.has_value());
    closed = why;
    connection.reset();
  }
  void step(int rounds = 5) {
    for (int i = 0; i < rounds; ++i) poller->run_once(Duration::zero());
  }
  static std::vector<std::byte> frame(FrameType type, std::string_view payload,
                                      uint32_t fd_count = 0, uint64_t id = 7) {
    const auto header =
        wire::encode(wire::FrameHeader{.type = type,
                                       .payload_bytes = static_cast<uint32_t>(payload.size()),
                                       .fd_count = fd_count,
                                       .request_id = id});
    std::vector<std::byte> out(header.begin(), header.end());
    const auto raw = std::as_bytes(std::span(payload));
    out.insert(out.end(), raw.begin(), raw.end());
    return out;
  }
  void send(std::span<const std::byte> bytes, std::span<const UniqueFd> fds = {}) {
    const auto sent = send_with_fds(peer.get(), bytes, fds);
    ASSERT_TRUE(sent.ok()) << sent.status().to_string();
    ASSERT_EQ((*sent).bytes, bytes.size());
  }
  void expect_closed_as(Reason reason) {
    step();
    ASSERT_TRUE(closed.has_value());
    EXPECT_EQ(closed->reason(), reason) << closed->to_string();
  }

  std::unique_ptr<Poller> poller;
  UniqueFd peer;
  std::unique_ptr<FrameConnection> connection;
  std::vector<Received> received;
  std::function<Status()> then;
  std::optional<Status> closed;
};

TEST_F(FrameConnectionTest, DeliversFramesHoweverTheirBytesArrive) {
  auto stream = frame(FrameType::kNotify, "first", 0, 1);
  for (const auto& next :
       {frame(FrameType::kPing, "", 0, 2), frame(FrameType::kNotify, "third", 0, 3)}) {
    stream.insert(stream.end(), next.begin(), next.end());
  }
  send(stream);
  step();
  for (const std::byte& byte : stream) {
    send({&byte, 1});
    step(1);
  }
  ASSERT_EQ(received.size(), 6U);
  for (size_t i = 0; i < received.size(); ++i) EXPECT_EQ(received[i].header.request_id, i % 3 + 1);
  EXPECT_EQ(received[5].payload, bytes_of("third"));
  EXPECT_FALSE(closed.has_value());
}

TEST_F(FrameConnectionTest, HandsOverDescriptorsThatCloseOnExec) {
  const UniqueFd sent[] = {some_fd(), some_fd()};
  send(frame(FrameType::kWelcome, "payload", 2), sent);
  step();
  ASSERT_EQ(received.size(), 1U);
  ASSERT_EQ(received[0].fds.size(), 2U);
  for (const UniqueFd& fd : received[0].fds) {
    EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST_F(FrameConnectionTest, DescriptorsBelongToTheirOwnFrame) {
  const UniqueFd one[] = {some_fd()};
  send(frame(FrameType::kNotify, "none"));
  send(frame(FrameType::kRegion, "one", 1), one);
  send(frame(FrameType::kNotify, "none"));
  send(frame(FrameType::kRegion, "one", 1), one);
  step();
  ASSERT_EQ(received.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(received[i].fds.size(), i % 2);
}

TEST_F(FrameConnectionTest, MissingDescriptorsEndTheConnection) {
  const UniqueFd one[] = {some_fd()};
  send(frame(FrameType::kWelcome, "two are announced", 2), one);
  expect_closed_as(Reason::kFrame);
  EXPECT_TRUE(received.empty());
}

TEST_F(FrameConnectionTest, DescriptorsThatNoFrameAnnouncesEndTheConnection) {
  const UniqueFd one[] = {some_fd()};
  send(frame(FrameType::kNotify, "none is announced"), one);
  expect_closed_as(Reason::kFrame);
}

TEST_F(FrameConnectionTest, DescriptorsInTheMiddleOfAFrameEndTheConnection) {
  const UniqueFd one[] = {some_fd()};
  const auto whole = frame(FrameType::kRegion, "payload", 1);
  send(std::span(whole).first(26), one);
  step();
  send(std::span(whole).subspan(26, 1), one);
  expect_closed_as(Reason::kFrame);
}

TEST_F(FrameConnectionTest, MoreDescriptorsThanAFrameCanCarryAreClosedAgain) {
  const auto bytes = frame(FrameType::kWelcome, "", 4);
  const UniqueFd fd = some_fd();
  constexpr size_t kCount = wire::kMaxFds + 1;
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kCount)] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const int raw = fd.get();
    std::memcpy(CMSG_DATA(header) + i * sizeof(int), &raw, sizeof(int));
  }
  const int lowest_free_before = some_fd().get();
  ASSERT_GT(::sendmsg(peer.get(), &message, 0), 0);
  expect_closed_as(Reason::kFrame);
  // The connection's own descriptor is closed as well, so nothing above it can be open.
  EXPECT_LE(some_fd().get(), lowest_free_before);
}

TEST_F(FrameConnectionTest, TooManyOpenFilesIsTheLimitOfThisConnectionOnly) {
  const UniqueFd four[] = {some_fd(), some_fd(), some_fd(), some_fd()};
  send(frame(FrameType::kWelcome, "", 4), four);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  {
    // Room for three.
    const UniqueFd places[] = {some_fd(), some_fd(), some_fd()};
    const rlimit few{.rlim_cur = static_cast<rlim_t>(places[2].get()) + 1,
                     .rlim_max = old.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  step();
  const UniqueFd still_free[] = {some_fd(), some_fd(), some_fd()};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->reason(), Reason::kNofile) << closed->to_string();
  for (const UniqueFd& fd : still_free) EXPECT_TRUE(fd) << "a descriptor that came was kept";
}

TEST_F(FrameConnectionTest, BulkFramesEndAControlConnection) {
  for (const FrameType type : {FrameType::kData, FrameType::kRead, FrameType::kDone}) {
    closed.reset();
    int fds[2];
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds);
    peer.reset(fds[1]);
    connection = std::move(*FrameConnection::create(*poller, UniqueFd(fds[0]), *this));
    send(frame(type, "payload"));
    expect_closed_as(Reason::kFrame);
  }
  EXPECT_TRUE(received.empty());
}

TEST_F(FrameConnectionTest, TheEndBetweenFramesIsGoodOrder) {
  send(frame(FrameType::kBye, ""));
  peer.reset();
  expect_closed_as(Reason::kOk);
  EXPECT_EQ(received.size(), 1U);
}

TEST_F(FrameConnectionTest, TheEndInsideAFrameIsALoss) {
  const auto whole = frame(FrameType::kNotify, "payload");
  send(std::span(whole).first(whole.size() - 1));
  peer.reset();
  expect_closed_as(Reason::kConnectionCut);
}

TEST_F(FrameConnectionTest, AFailureOfTheOwnerEndsTheConnectionWithIt) {
  then = [] { return Status(Reason::kOtherUser, "not you"); };
  send(frame(FrameType::kNotify, "one"));
  send(frame(FrameType::kNotify, "two"));
  expect_closed_as(Reason::kOtherUser);
  EXPECT_EQ(received.size(), 1U);
}

TEST_F(FrameConnectionTest, TheOwnerMayDestroyTheConnectionInAFrame) {
  then = [this] {
    connection.reset();
    return Status();
  };
  send(frame(FrameType::kNotify, "one"));
  send(frame(FrameType::kNotify, "two"));
  step();
  EXPECT_EQ(received.size(), 1U);
  EXPECT_FALSE(closed.has_value());
}

TEST_F(FrameConnectionTest, SendsWhatTheSocketTakesAndTheRestLater) {
  const std::string payload(wire::kMaxControlBytes, 'x');
  size_t accepted = 0;
  Status status;
  while ((status = connection->send(FrameType::kNotify, accepted, bytes_of(payload))).ok()) {
    ++accepted;
  }
  EXPECT_EQ(status.reason(), Reason::kRingFull);
  EXPECT_FALSE(connection->drained());
  const size_t frame_bytes = wire::kFrameHeaderBytes + payload.size();
  size_t got = 0;
  std::vector<std::byte> buffer(1 << 20);
  for (int i = 0; i < 10'000 && got < accepted * frame_bytes; ++i) {
    step(1);
    const ssize_t n = ::recv(peer.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) got += static_cast<size_t>(n);
  }
  EXPECT_EQ(got, accepted * frame_bytes);
  EXPECT_TRUE(connection->drained());
  EXPECT_TRUE(connection->send(FrameType::kNotify, 1, bytes_of(payload)).ok());
}

TEST_F(FrameConnectionTest, SendsDescriptors) {
  std::vector<UniqueFd> fds;
  fds.push_back(some_fd());
  ASSERT_TRUE(connection->send(FrameType::kRegion, 3, bytes_of("hi"), std::move(fds)).ok());
  std::vector<std::byte> buffer(100);
  std::vector<UniqueFd> got;
  const auto moved = receive_with_fds(peer.get(), buffer, got);
  ASSERT_TRUE(moved.ok());
  EXPECT_EQ((*moved).bytes, wire::kFrameHeaderBytes + 2);
  EXPECT_EQ(got.size(), 1U);
}

TEST_F(FrameConnectionTest, RefusesToSendWhatAFrameCannotCarry) {
  const std::vector<std::byte> most(wire::kMaxControlBytes);
  const std::vector<std::byte> more(wire::kMaxControlBytes + 1);
  EXPECT_TRUE(connection->send(FrameType::kNotify, 1, most).ok());
  EXPECT_EQ(connection->send(FrameType::kNotify, 1, more).reason(), Reason::kTooLarge);
  EXPECT_EQ(connection->send(FrameType::kPing, 1, bytes_of("x")).reason(), Reason::kTooLarge);
}

TEST_F(FrameConnectionTest, ABrokenSendIsToldByTheLoopAndNotInsideSend) {
  peer.reset();
  const Status first = connection->send(FrameType::kNotify, 1, bytes_of("x"));
  EXPECT_EQ(first.code(), Code::kPeerLost) << first.to_string();
  EXPECT_FALSE(closed.has_value());
  EXPECT_FALSE(connection->send(FrameType::kNotify, 1, bytes_of("x")).ok());
  step();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->code(), Code::kPeerLost);
}

}  // namespace
}  // namespace stagelink::transport
