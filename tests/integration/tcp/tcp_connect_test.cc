// Who reaches whom over TCP, and what is said when somebody does not.

#include <cstdio>
#include <fstream>

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/endpoint.h"
#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"
#include "transport/blocking_frames.h"
#include "wire/engine_desc.h"
#include "wire/hello.h"
#include "wire/notify_record.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 4 << 20;

class TcpConnectTest : public EngineTest {
 protected:
  EngineOptions with(const std::string& name, std::vector<std::string> transports) const {
    EngineOptions with = options(name);
    with.transports = std::move(transports);
    return with;
  }
  // Reads all of the owner's region by this peer, and looks at every byte.
  void expect_reads(Engine& engine, Peer& peer, OwnerProcess& owner, const OwnedRegion& remote) {
    owner.fill(remote, seed());
    const PrivateMemory memory(kBytes);
    const Region local = must(engine.register_memory(memory.data(), memory.size()));
    const std::array<const Region*, 1> own = {&local};
    Session session = must(peer.session(own, std::span(&remote.desc, 1)));
    ASSERT_OK(must(session.read(whole(kBytes))).wait(10s));
    EXPECT_EQ(first_wrong(memory.bytes(), seed()), std::nullopt);
    explained_ = session.explain();
  }
  std::string explained_;
};

// T24: each form of address, with nothing shared.
TEST_F(TcpConnectTest, EveryFormOfAddressCarriesBytes) {
  for (const char* bind : {"127.0.0.1:0", "[::1]:0", "localhost:0", "auto"}) {
    EngineOptions listener = with("owner", {"tcp"});
    listener.bind = bind;
    if (const auto probe = Engine::create(listener); !probe.ok()) {
      std::printf("no %s here: %s\n", bind, probe.status().to_string().c_str());
      ASSERT_STREQ(bind, "[::1]:0");
      continue;
    }
    OwnerProcess owner(listener);
    const OwnedRegion remote = owner.register_memory(kBytes);
    const auto engine = must(Engine::create(with("reader", {"tcp"})));
    Peer by_address = must(engine->connect(owner.address(), 2s));
    EXPECT_EQ(by_address.instance(), remote.desc.instance);
    expect_reads(*engine, by_address, owner, remote);
    EXPECT_NE(explained_.find("tcp: "), std::string::npos) << explained_;
    Peer by_descriptor = must(engine->connect(owner.descriptor(), 2s));
    expect_reads(*engine, by_descriptor, owner, remote);
  }
}

TEST_F(TcpConnectTest, MappedMemoryAndAStreamOverTcpInOneSession) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = owner.register_memory(kBytes);
  const auto engine = must(Engine::create(with("reader", {"shm", "tcp"})));
  Peer peer = must(engine->connect(owner.descriptor()));
  expect_reads(*engine, peer, owner, remote);
  EXPECT_NE(explained_.find("tcp: "), std::string::npos) << explained_;
  const OwnedRegion shared = owner.allocate(kBytes);
  expect_reads(*engine, peer, owner, shared);
  EXPECT_NE(explained_.find("shm: "), std::string::npos) << explained_;
}

TEST_F(TcpConnectTest, OwnerWithoutTcpRefusesIt) {
  OwnerProcess owner(with("owner", {"shm", "unix"}));
  const auto engine = must(Engine::create(with("reader", {"tcp"})));
  for (const Status& status : {engine->connect(owner.descriptor(), 2s).status(),
                               engine->connect(owner.address(), 2s).status()}) {
    EXPECT_REASON(Reason::kPermission, status);
    EXPECT_NE(status.message().find("tcp"), std::string_view::npos) << status.message();
  }
  EXPECT_GE(metric_in(owner.metrics_text(), "handshakes_refused_total"), 2);
}

// Its socket lies in another mount namespace, say.
TEST_F(TcpConnectTest, SocketThatIsNotThereMeansTcpIfItIsEnabled) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = owner.register_memory(kBytes);
  auto desc = must(wire::decode_engine_desc(owner.descriptor()));
  desc.socket_path += ".elsewhere";
  const auto moved = wire::encode(desc);
  const auto engine = make_engine("reader");
  Peer peer = must(engine->connect(moved, 2s));
  expect_reads(*engine, peer, owner, remote);
  EXPECT_NE(explained_.find("tcp: "), std::string::npos) << explained_;
  const auto local_only = must(Engine::create(with("local", {"shm", "unix"})));
  EXPECT_REASON(Reason::kRefused, local_only->connect(moved, 2s).status());
}

TEST_F(TcpConnectTest, AddressesAreTriedInTurn) {
  OwnerProcess owner(with("owner", {"tcp"}));
  const OwnedRegion remote = owner.register_memory(kBytes);
  auto desc = must(wire::decode_engine_desc(owner.descriptor()));
  desc.addresses.insert(desc.addresses.begin(), "127.0.0.1:1");  // Nobody listens there.
  const auto engine = must(Engine::create(with("reader", {"tcp"})));
  Peer peer = must(engine->connect(wire::encode(desc), 5s));
  expect_reads(*engine, peer, owner, remote);
  // All in vain: the last failure, with its address.
  desc.addresses = {"127.0.0.1:1", "[::1]:1"};
  const Status status = engine->connect(wire::encode(desc), 2s).status();
  EXPECT_EQ(status.code(), Code::kUnreachable) << status.to_string();
  EXPECT_NE(status.message().find(":1"), std::string_view::npos) << status.message();
}

TEST_F(TcpConnectTest, AnotherInstanceAtTheAddressIsRestarted) {
  OwnerProcess owner(with("owner", {"tcp"}));
  auto desc = must(wire::decode_engine_desc(owner.descriptor()));
  desc.instance.low ^= 1;
  const auto engine = must(Engine::create(with("reader", {"tcp"})));
  EXPECT_REASON(Reason::kRestarted, engine->connect(wire::encode(desc), 2s).status());
}

// T10: a hundred peers come and go.
TEST_F(TcpConnectTest, FdsAreFlatAfterAHundredPeers) {
  OwnerProcess owner(with("owner", {"tcp"}));
  const OwnedRegion remote = owner.register_memory(kBytes);
  const auto engine = must(Engine::create(with("reader", {"tcp"})));
  const size_t before = open_fds();
  for (int i = 0; i < 100; ++i) {
    Peer peer = must(engine->connect(owner.descriptor(), 2s));
    if (i % 10 == 0) expect_reads(*engine, peer, owner, remote);
    EXPECT_OK(peer.notify(bytes_of("here")));
    EXPECT_OK(peer.close());
  }
  EXPECT_TRUE(eventually([&] { return metric(*engine, "peers") == 0; }));
  EXPECT_TRUE(eventually([&] { return open_fds() <= before; })) << open_fds() << " " << before;
  EXPECT_TRUE(eventually([&] { return metric_in(owner.metrics_text(), "inbound_peers") == 0; }));
}

// A hello by hand, and the first frame of the answer.
wire::FrameType answer_to(int fd, wire::Role role, InstanceId instance, Reason& why) {
  wire::Hello hello;
  hello.version = wire::own_version();
  hello.role = role;
  hello.instance = instance;
  hello.name = "by hand";
  const Deadline deadline = Deadline::in(5s);
  EXPECT_OK(transport::send_frame(fd, wire::FrameType::kHello, 0, wire::encode(hello), deadline));
  auto frame = must(transport::receive_frame(fd, deadline));
  why = Reason::kOk;
  if (frame.header.type == wire::FrameType::kRefuse) {
    why = must(wire::decode_outcome(frame.payload)).reason;
  }
  return frame.header.type;
}

TEST_F(TcpConnectTest, DataConnectionsBeyondTheBoundAreRefusedAndSaidToBe) {
  OwnerProcess owner(with("owner", {"tcp"}));
  const Endpoint endpoint = must(parse_endpoint(owner.address()));
  const auto dial = [&] {
    return must(transport::connect_tcp(endpoint.host, endpoint.port, Deadline::in(5s)));
  };
  const InstanceId me = random_instance_id();
  Reason why = Reason::kOk;
  const UniqueFd alone = dial();
  EXPECT_EQ(answer_to(alone.get(), wire::Role::kData, me, why), wire::FrameType::kRefuse);
  EXPECT_EQ(why, Reason::kPermission);
  const UniqueFd control = dial();
  ASSERT_EQ(answer_to(control.get(), wire::Role::kControl, me, why), wire::FrameType::kWelcome);
  std::vector<UniqueFd> data;
  for (int i = 0; i < 64; ++i) {
    data.push_back(dial());
    ASSERT_EQ(answer_to(data.back().get(), wire::Role::kData, me, why), wire::FrameType::kWelcome);
  }
  UniqueFd beyond = dial();
  EXPECT_EQ(answer_to(beyond.get(), wire::Role::kData, me, why), wire::FrameType::kRefuse);
  EXPECT_EQ(why, Reason::kLimit);
  data.pop_back();
  EXPECT_TRUE(eventually([&] {
    beyond = dial();
    return answer_to(beyond.get(), wire::Role::kData, me, why) == wire::FrameType::kWelcome;
  }));
}

// What its window does not cover, a peer must not send.
TEST_F(TcpConnectTest, NotificationsBeyondTheWindowEndTheConnection) {
  OwnerProcess owner(with("owner", {"tcp"}));
  const Endpoint endpoint = must(parse_endpoint(owner.address()));
  const UniqueFd control =
      must(transport::connect_tcp(endpoint.host, endpoint.port, Deadline::in(5s)));
  Reason why = Reason::kOk;
  ASSERT_EQ(answer_to(control.get(), wire::Role::kControl, random_instance_id(), why),
            wire::FrameType::kWelcome);
  const std::vector<std::byte> message(1016, std::byte{9});
  const auto header = wire::encode_notify_header(Reason::kOk, 1016);
  std::vector<std::byte> record(header.begin(), header.end());
  record.insert(record.end(), message.begin(), message.end());
  for (int i = 0; i < 33; ++i) {
    ASSERT_OK(transport::send_frame(control.get(), wire::FrameType::kNotify, 0, record,
                                    Deadline::in(5s)));
  }
  EXPECT_TRUE(eventually([&] { return metric_in(owner.metrics_text(), "inbound_peers") == 0; }));
  EXPECT_EQ(metric_in(owner.metrics_text(), "failures_total", "frame"), 1);
  EXPECT_EQ(owner.take(1s).size(), 32U);  // Those that came in time are not lost.
}

// A host of its own with two local ports, which runs out of them.
int run_out_of_ports(Channel& parent) {
  if (::unshare(CLONE_NEWNET) != 0) {
    parent.send("no network of our own");
    return 0;
  }
  const UniqueFd any(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::snprintf(request.ifr_name, sizeof request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
  range << "40000 40001" << std::flush;
  if (::ioctl(any.get(), SIOCSIFFLAGS, &request) != 0 || !range.good()) {
    parent.send("no network of our own");
    return 0;
  }
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(5000);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), 16) != 0) {
    return 1;
  }
  std::vector<UniqueFd> held;
  Status status;
  while (status.ok() && held.size() < 10) {
    auto fd = transport::connect_tcp("127.0.0.1", 5000, Deadline::in(5s));
    status = fd.status();
    if (fd.ok()) held.push_back(*std::move(fd));
  }
  parent.send(std::to_string(held.size()) + " " + std::string(reason_name(status.reason())));
  return 0;
}
const RoleRegistration kRunOutOfPorts("run_out_of_ports", &run_out_of_ports);

TEST_F(TcpConnectTest, ShortageOfLocalPortsIsNamed) {
  ChildProcess child("run_out_of_ports");
  const auto told = child.channel().receive_text();
  ASSERT_TRUE(told.has_value()) << "exit code " << child.wait_exit();
  if (told->starts_with("no network")) GTEST_SKIP() << "needs a network namespace: run it as root";
  EXPECT_EQ(*told, "2 no_ports");
  EXPECT_EQ(child.wait_exit(), 0);
}

}  // namespace
}  // namespace stagelink::test
