#include "transport/blocking_frames.h"

#include <cstring>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "integration/support/sanitized.h"
#include "transport/socket_io.h"

namespace stagelink::transport {
namespace {

using wire::FrameType;

Deadline soon() { return Deadline::in(std::chrono::milliseconds(30)); }
Deadline far_away() { return Deadline::in(std::chrono::seconds(20)); }

std::pair<UniqueFd, UniqueFd> make_pair() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// A directory with one listening UNIX socket.
struct UnixListenerTest : testing::Test {
  UnixListenerTest() {
    char folder_template[] = "/tmp/stagelink-test-XXXXXX";
    folder = ::mkdtemp(folder_template);
    path = folder + "/socket";
  }
  ~UnixListenerTest() override {
    ::unlink(path.c_str());
    ::rmdir(folder.c_str());
  }
  void listen(int backlog) {
    listener.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(listener.get(), backlog), 0);
  }
  std::string folder;
  std::string path;
  UniqueFd listener;
};

TEST_F(UnixListenerTest, ConnectsWithANonBlockingSocketThatClosesOnExec) {
  listen(1);
  auto fd = connect_unix(path, far_away());
  ASSERT_TRUE(fd.ok()) << fd.status().to_string();
  EXPECT_NE(::fcntl(fd->get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(UnixListenerTest, NobodyThereIsRefused) {
  EXPECT_EQ(connect_unix(path, far_away()).status().reason(), Reason::kRefused);
  listen(1);
  listener.reset();  // The file is left behind.
  EXPECT_EQ(connect_unix(path, far_away()).status().reason(), Reason::kRefused);
}

TEST_F(UnixListenerTest, AListenerThatDoesNotAcceptCostsTheDeadline) {
  listen(0);
  std::vector<UniqueFd> fds;
  Status last;
  for (int i = 0; i < 10 && last.ok(); ++i) {
    const Deadline deadline = soon();
    auto fd = connect_unix(path, deadline);
    last = fd.status();
    EXPECT_TRUE(fd.ok() || deadline.passed());
    if (fd.ok()) fds.push_back(std::move(*fd));
  }
  EXPECT_EQ(last.reason(), Reason::kConnectTimeout);
}

TEST_F(UnixListenerTest, PathsHaveABoundThatIsNamed) {
  EXPECT_EQ(connect_unix(std::string(107, 'p'), far_away()).status().reason(), Reason::kRefused);
  const Status status = connect_unix(std::string(108, 'p'), far_away()).status();
  EXPECT_EQ(status.reason(), Reason::kInvalidArgument);
  EXPECT_NE(status.message().find("107"), std::string_view::npos);
  EXPECT_EQ(connect_unix("", far_away()).status().reason(), Reason::kInvalidArgument);
}

TEST_F(UnixListenerTest, TooManyOpenFilesIsALimit) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer needs fds of its own";
  listen(1);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto fd = connect_unix(path, far_away());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(fd.status().reason(), Reason::kNofile);
}

struct TcpListener {
  TcpListener() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port = ntohs(address.sin_port);
  }
  UniqueFd fd;
  uint16_t port = 0;
};

TEST(ConnectTcpTest, ConnectsByAddressAndByName) {
  TcpListener listener;
  ASSERT_EQ(::listen(listener.fd.get(), 8), 0);
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const auto fd = connect_tcp(host, listener.port, far_away());
    EXPECT_TRUE(fd.ok()) << host << ": " << fd.status().to_string();
  }
}

TEST(ConnectTcpTest, FailuresAreToldApart) {
  TcpListener not_listening;
  EXPECT_EQ(connect_tcp("127.0.0.1", not_listening.port, far_away()).status().reason(),
            Reason::kRefused);
  EXPECT_EQ(connect_tcp("", 80, far_away()).status().reason(), Reason::kInvalidArgument);
  EXPECT_EQ(connect_tcp("127.0.0.1", 0, far_away()).status().reason(), Reason::kInvalidArgument);
}

TEST(BlockingFramesTest, AFrameArrivesWithItsDescriptors) {
  auto [a, b] = make_pair();
  const UniqueFd fds[] = {UniqueFd(::memfd_create("test", MFD_CLOEXEC))};
  const auto header = wire::encode(wire::FrameHeader{
      .type = FrameType::kWelcome, .payload_bytes = 3, .fd_count = 1, .request_id = 5});
  std::vector<std::byte> bytes(header.begin(), header.end());
  for (int i = 0; i < 3; ++i) bytes.push_back(std::byte{9});
  ASSERT_TRUE(send_with_fds(a.get(), bytes, fds).ok());
  auto frame = receive_frame(b.get(), far_away());
  ASSERT_TRUE(frame.ok()) << frame.status().to_string();
  EXPECT_EQ(frame->header.request_id, 5U);
  EXPECT_EQ(frame->payload.size(), 3U);
  EXPECT_EQ(frame->fds.size(), 1U);
}

TEST(BlockingFramesTest, NothingBeyondTheFrameIsTaken) {
  auto [a, b] = make_pair();
  const std::vector<std::byte> payload(10);
  ASSERT_TRUE(send_frame(a.get(), FrameType::kNotify, 1, payload, far_away()).ok());
  ASSERT_TRUE(send_frame(a.get(), FrameType::kNotify, 2, payload, far_away()).ok());
  EXPECT_EQ(receive_frame(b.get(), far_away())->header.request_id, 1U);
  EXPECT_EQ(receive_frame(b.get(), far_away())->header.request_id, 2U);
}

TEST(BlockingFramesTest, ShortReadsAndWritesAreContinued) {
  auto [a, b] = make_pair();
  const int small = 4096;
  ::setsockopt(a.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  std::vector<std::byte> payload(wire::kMaxControlBytes);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 7);
  Status sent;
  std::thread sender(
      [&, fd = a.get()] { sent = send_frame(fd, FrameType::kHello, 1, payload, far_away()); });
  auto frame = receive_frame(b.get(), far_away());
  sender.join();
  EXPECT_TRUE(sent.ok()) << sent.to_string();
  ASSERT_TRUE(frame.ok()) << frame.status().to_string();
  EXPECT_TRUE(frame->payload == payload);
}

TEST(BlockingFramesTest, ASilentPeerCostsTheDeadline) {
  auto [a, b] = make_pair();
  Deadline deadline = soon();
  EXPECT_EQ(receive_frame(b.get(), deadline).status().reason(), Reason::kConnectTimeout);
  EXPECT_TRUE(deadline.passed());
  // Half a frame is no better.
  const auto header =
      wire::encode(wire::FrameHeader{.type = FrameType::kHello, .payload_bytes = 9});
  ASSERT_TRUE(send_with_fds(a.get(), header, {}).ok());
  EXPECT_EQ(receive_frame(b.get(), soon()).status().code(), Code::kTimedOut);
}

TEST(BlockingFramesTest, APeerThatDoesNotReadCostsTheDeadline) {
  auto [a, b] = make_pair();
  const std::vector<std::byte> payload(wire::kMaxControlBytes);
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = send_frame(a.get(), FrameType::kHello, 1, payload, soon());
  }
  EXPECT_EQ(status.code(), Code::kTimedOut);
}

TEST(BlockingFramesTest, APeerThatClosesIsLost) {
  auto [a, b] = make_pair();
  a.reset();
  EXPECT_EQ(receive_frame(b.get(), far_away()).status().reason(), Reason::kConnectionCut);
  EXPECT_EQ(send_frame(b.get(), FrameType::kHello, 1, {}, far_away()).code(), Code::kPeerLost);
}

TEST(BlockingFramesTest, BrokenFramesAreCorrupt) {
  const std::vector<std::byte> noise(24, std::byte{0xab});
  const auto bulk = wire::encode(
      wire::FrameHeader{.type = FrameType::kData, .payload_bytes = wire::kMaxControlBytes + 1});
  const auto no_fds = wire::encode(wire::FrameHeader{.type = FrameType::kWelcome, .fd_count = 1});
  for (const std::span<const std::byte> bytes :
       {std::span<const std::byte>(noise), std::span<const std::byte>(bulk),
        std::span<const std::byte>(no_fds)}) {
    auto [a, b] = make_pair();
    ASSERT_TRUE(send_with_fds(a.get(), bytes, {}).ok());
    EXPECT_EQ(receive_frame(b.get(), far_away()).status().reason(), Reason::kFrame);
  }
}

}  // namespace
}  // namespace stagelink::transport
