// Connecting, and what may stand at the other end instead of an engine (T21, T24, T46).

#include <algorithm>
#include <chrono>
#include <thread>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/endpoint.h"
#include "integration/support/engine_test.h"
#include "stagelink/version.h"
#include "wire/engine_desc.h"
#include "wire/frame.h"
#include "wire/hello.h"

namespace stagelink::test {
namespace {

using Clock = std::chrono::steady_clock;

UniqueFd loopback_socket() { return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A listener that is no engine: hands every guest the same bytes, or none.
class Impostor {
 public:
  explicit Impostor(std::vector<std::byte> answer = {}) : answer_(std::move(answer)) {
    listener_ = loopback_socket();
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    const auto* const raw = reinterpret_cast<const sockaddr*>(&address);
    if (::bind(listener_.get(), raw, size) != 0 || ::listen(listener_.get(), 64) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("no listener");
    }
    port_ = ntohs(address.sin_port);
    if (!answer_.empty()) thread_ = std::thread([this] { serve(); });
  }
  ~Impostor() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  uint16_t port() const noexcept { return port_; }

 private:
  void serve() {
    for (;;) {
      UniqueFd guest(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!guest) return;
      (void)::send(guest.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
      guests_.push_back(std::move(guest));  // Kept open: only the bytes speak.
    }
  }

  const std::vector<std::byte> answer_;
  UniqueFd listener_;
  uint16_t port_ = 0;
  std::vector<UniqueFd> guests_;
  std::thread thread_;
};

std::vector<std::byte> frame_of(wire::FrameType type, std::span<const std::byte> payload) {
  wire::FrameHeader header;
  header.type = type;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  const auto head = wire::encode(header);
  std::vector<std::byte> frame(head.size() + payload.size());
  std::copy(payload.begin(), payload.end(), std::copy(head.begin(), head.end(), frame.begin()));
  return frame;
}

class ConnectTest : public EngineTest {};

TEST_F(ConnectTest, DescriptorAndAddressLeadToTheSamePeer) {
  OwnerProcess owner(options("owner"));
  const auto engine = make_engine("reader");
  const Peer by_descriptor = must(engine->connect(owner.descriptor()));
  const Peer by_address = must(engine->connect(owner.address()));
  EXPECT_EQ(by_descriptor.instance(), by_address.instance());
  EXPECT_EQ(by_address.name(), "owner");
  EXPECT_EQ(by_address.phase(), PeerPhase::kConnected);
  EXPECT_EQ(metric(*engine, "peers"), 2);
}

TEST_F(ConnectTest, EngineMayConnectToItself) {
  const auto engine = make_engine("alone");
  Region source = must(engine->allocate(65536));
  const Region target = must(engine->allocate(65536));
  fill_pattern(source.bytes(), seed());
  Peer self = must(engine->connect(engine->descriptor()));
  const std::array<const Region*, 1> own = {&target};
  const RegionDesc desc = source.descriptor();
  Session session = must(self.session(own, std::span(&desc, 1)));
  ASSERT_OK(must(session.read(whole(65536))).wait(5s));
  EXPECT_EQ(first_wrong(target.bytes(), seed()), std::nullopt);
  EXPECT_OK(engine->close());
}

TEST_F(ConnectTest, NobodyListensIsRefusedAtOnce) {
  const auto engine = make_engine("reader");
  std::string address;
  { address = Impostor().address(); }
  const auto before = Clock::now();
  const Status status = engine->connect(address, 5s).status();
  EXPECT_LT(Clock::now() - before, 4s);
  EXPECT_REASON(Reason::kRefused, status);
  EXPECT_EQ(status.code(), Code::kUnreachable);
  EXPECT_NE(status.message().find(address), std::string_view::npos) << status.message();
}

// T01: accepts, and never says a word.
TEST_F(ConnectTest, SilentListenerTimesOut) {
  const auto engine = make_engine("reader");
  const Impostor silent;
  const auto before = Clock::now();
  const Status status = engine->connect(silent.address(), 300ms).status();
  EXPECT_LT(Clock::now() - before, 5s);
  EXPECT_EQ(status.code(), Code::kTimedOut) << status.to_string();
}

// T01: a stopped engine's kernel still takes connections.
TEST_F(ConnectTest, StoppedEngineTimesOut) {
  OwnerProcess owner(options("owner"));
  const auto engine = make_engine("reader");
  owner.process().stop();
  EXPECT_EQ(engine->connect(owner.descriptor(), 200ms).status().code(), Code::kTimedOut);
  EXPECT_EQ(engine->connect(owner.address(), 200ms).status().code(), Code::kTimedOut);
  owner.process().resume();
  EXPECT_OK(engine->connect(owner.address(), 5s).status());
}

TEST_F(ConnectTest, GarbageIsCorruptAndNothingWorse) {
  const auto engine = make_engine("reader");
  SplitMix64 random(seed());
  for (int round = 0; round < 30; ++round) {
    std::vector<std::byte> garbage(24 + random.below(2000));
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random.next());
    const Impostor impostor(garbage);
    const Status status = engine->connect(impostor.address(), 2s).status();
    EXPECT_EQ(status.code(), Code::kCorrupt) << status.to_string();
  }
  const Impostor http(bytes_of("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"));
  EXPECT_EQ(engine->connect(http.address(), 2s).status().code(), Code::kCorrupt);
}

TEST_F(ConnectTest, FramesOfTheWrongKindAreCorrupt) {
  const auto engine = make_engine("reader");
  for (const auto type : {wire::FrameType::kPing, wire::FrameType::kHello, wire::FrameType::kData,
                          wire::FrameType::kBye}) {
    const Impostor impostor(frame_of(type, {}));
    EXPECT_EQ(engine->connect(impostor.address(), 2s).status().code(), Code::kCorrupt)
        << wire::frame_name(type);
  }
}

TEST_F(ConnectTest, OtherVersionIsIncompatibleAndNamesBoth) {
  const auto engine = make_engine("reader");
  wire::Welcome welcome;
  welcome.version = {9, 7};
  welcome.instance = random_instance_id();
  welcome.name = "from the future";
  const Impostor impostor(frame_of(wire::FrameType::kWelcome, wire::encode(welcome)));
  const Status status = engine->connect(impostor.address(), 2s).status();
  EXPECT_REASON(Reason::kVersion, status);
  EXPECT_EQ(status.code(), Code::kIncompatible);
  EXPECT_NE(status.message().find("9.7"), std::string_view::npos) << status.message();
  EXPECT_NE(status.message().find(fmt::format("{}.{}", kProtocolMajor, kProtocolMinor)),
            std::string_view::npos)
      << status.message();
}

TEST_F(ConnectTest, RefusalOfThePeerKeepsItsReason) {
  const auto engine = make_engine("reader");
  const wire::Outcome outcome{Reason::kTooManyPeers, "full up"};
  const Impostor impostor(frame_of(wire::FrameType::kRefuse, wire::encode(outcome)));
  const Status status = engine->connect(impostor.address(), 2s).status();
  EXPECT_REASON(Reason::kTooManyPeers, status);
  EXPECT_NE(status.message().find("full up"), std::string_view::npos);
}

TEST_F(ConnectTest, OtherHostWithoutTcpIsUnreachableAndNamesWhatIsEnabled) {
  EngineOptions local_only = options("reader");
  local_only.transports = {"shm", "unix"};
  const auto engine = must(Engine::create(local_only));
  wire::Welcome welcome;
  welcome.version = wire::own_version();
  welcome.instance = random_instance_id();
  welcome.host = {1, 2};
  welcome.name = "far away";
  const Impostor impostor(frame_of(wire::FrameType::kWelcome, wire::encode(welcome)));
  const Status status = engine->connect(impostor.address(), 2s).status();
  EXPECT_REASON(Reason::kOtherHost, status);
  EXPECT_NE(status.message().find("shm, unix"), std::string_view::npos) << status.message();
}

TEST_F(ConnectTest, BadDescriptorsAreCorruptNeverTaken) {
  OwnerProcess owner(options("owner"));
  const auto engine = make_engine("reader");
  const auto& good = owner.descriptor();
  EXPECT_EQ(engine->connect(std::span<const std::byte>{}).status().code(), Code::kCorrupt);
  for (size_t size = 0; size < good.size(); size += 7) {
    EXPECT_EQ(engine->connect(std::span(good).first(size)).status().code(), Code::kCorrupt) << size;
  }
  for (size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x10};
    EXPECT_FALSE(engine->connect(bad, 500ms).ok()) << "byte " << at;
  }
  EXPECT_OK(engine->connect(good).status());
}

// Slow, silent guests; everybody else is served meanwhile.
TEST_F(ConnectTest, SixtyFourSilentGuestsDoNotStallTheEngine) {
  EngineOptions patient = options("owner");
  patient.connect_timeout = 1s;
  OwnerProcess owner(patient);
  const Endpoint endpoint = must(parse_endpoint(owner.address()));
  const sockaddr_in address = loopback(endpoint.port);
  const auto engine = make_engine("reader");
  Peer before = must(engine->connect(owner.descriptor()));
  std::vector<UniqueFd> guests;
  for (int i = 0; i < 64; ++i) {
    guests.push_back(loopback_socket());
    ASSERT_EQ(
        ::connect(guests.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
        0);
    if (i % 2 == 0) (void)::send(guests.back().get(), "SL", 2, MSG_NOSIGNAL);
  }
  // A peer that is connected notices nothing.
  EXPECT_OK(before.notify(bytes_of("still here")));
  EXPECT_EQ(owner.take(2s).size(), 1U);
  // New ones are in at the latest when the silent ones have been shown out.
  EXPECT_TRUE(eventually([&] { return engine->connect(owner.descriptor(), 1s).ok(); }, 5s));
  EXPECT_TRUE(eventually(
      [&] { return metric_in(owner.metrics_text(), "handshakes_refused_total") >= 64; }));
}

// T49: random frames to the listener; the engine lives and counts.
TEST_F(ConnectTest, RandomHellosAreRefusedAndCounted) {
  OwnerProcess owner(options("owner"));
  const OwnedRegion canary = owner.register_memory(65536);
  owner.fill(canary, seed());
  const Endpoint endpoint = must(parse_endpoint(owner.address()));
  const sockaddr_in address = loopback(endpoint.port);
  SplitMix64 random(seed());
  const int rounds = 300;
  for (int i = 0; i < rounds; ++i) {
    const UniqueFd guest = loopback_socket();
    ASSERT_EQ(::connect(guest.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
    std::vector<std::byte> bytes(24 + random.below(200));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    if (i % 3 != 0) {  // A good header, so that what follows is looked at.
      wire::FrameHeader header;
      header.type = wire::FrameType::kHello;
      header.payload_bytes = static_cast<uint32_t>(bytes.size() - 24);
      const auto head = wire::encode(header);
      std::copy(head.begin(), head.end(), bytes.begin());
    }
    (void)::send(guest.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  const auto engine = make_engine("reader");
  EXPECT_TRUE(eventually([&] { return engine->connect(owner.descriptor(), 1s).ok(); }, 5s));
  EXPECT_GT(metric_in(owner.metrics_text(), "handshakes_refused_total"), rounds / 2);
  EXPECT_EQ(owner.first_wrong(canary, seed()), kNone);
}

TEST_F(ConnectTest, PeersBeyondTheOptionAreALimit) {
  EngineOptions few = options("owner");
  few.max_peers = 2;
  OwnerProcess owner(few);
  const auto engine = make_engine("reader");
  const Peer first = must(engine->connect(owner.descriptor()));
  std::optional<Peer> second(must(engine->connect(owner.descriptor())));
  const Status status = engine->connect(owner.descriptor(), 2s).status();
  EXPECT_REASON(Reason::kTooManyPeers, status);
  second.reset();
  EXPECT_TRUE(eventually([&] { return engine->connect(owner.descriptor(), 2s).ok(); }));
}

}  // namespace
}  // namespace stagelink::test
