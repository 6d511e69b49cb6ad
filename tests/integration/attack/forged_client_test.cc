// What somebody who is no engine can do to one, on its sockets.

#include <algorithm>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>

#include "base/endpoint.h"
#include "integration/attack/forged_peer.h"
#include "integration/support/engine_test.h"
#include "memory/segment.h"
#include "transport/shm/notify_ring.h"
#include "wire/batch_header.h"
#include "wire/frame.h"
#include "wire/peer_page_layout.h"

namespace stagelink::test {
namespace {

class ForgedClientTest : public EngineTest {
 protected:
  // One whose guests may take their time.
  std::unique_ptr<Engine> patient_engine() const {
    EngineOptions patient = options("victim");
    patient.connect_timeout = 60s;
    return must(Engine::create(patient));
  }
};

UniqueFd dial_from(const char* source, const std::string& address) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in from{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  sockaddr_in to = from;
  to.sin_port = htons(must(parse_endpoint(address)).port);
  EXPECT_EQ(::inet_pton(AF_INET, source, &from.sin_addr), 1);
  EXPECT_EQ(::inet_pton(AF_INET, "127.0.0.1", &to.sin_addr), 1);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return fd;
}

// More than an engine lets wait for their hello.
constexpr size_t kCrowd = 80;

// True once the victim has turned the last of the crowd away.
bool crowded(const Engine& victim) {
  return eventually([&] { return metric(victim, "handshakes_refused_total") >= 10; });
}

Reason reason_of(const transport::ReceivedFrame& frame) {
  if (frame.header.type != wire::FrameType::kRefuse) return Reason::kOk;
  return must(wire::decode_outcome(frame.payload)).reason;
}

TEST_F(ForgedClientTest, StrangersOnTheNetworkDoNotKeepOutPeersOfThisHost) {
  const auto victim = make_engine("victim");
  const auto honest = make_engine("honest");
  const ForgedPeer stranger(*victim);
  std::vector<UniqueFd> crowd;
  for (size_t i = 0; i < kCrowd; ++i) crowd.push_back(stranger.dial_tcp());
  ASSERT_TRUE(crowded(*victim));
  EXPECT_OK(honest->connect(victim->descriptor()).status());
}

TEST_F(ForgedClientTest, WhoeverIsTurnedAwayFromACrowdIsToldWhy) {
  const auto victim = patient_engine();
  const ForgedPeer stranger(*victim);
  std::vector<UniqueFd> crowd;
  for (size_t i = 0; i < kCrowd; ++i) {
    crowd.push_back(stranger.dial_unix());
    stranger.half_greet(crowd.back().get());
  }
  ASSERT_TRUE(crowded(*victim));
  size_t told = 0;
  for (const UniqueFd& fd : crowd) {
    pollfd answer{fd.get(), POLLIN, 0};
    if (::poll(&answer, 1, 0) == 0) continue;
    EXPECT_EQ(reason_of(must(transport::receive_frame(fd.get(), Deadline::in(10s)))),
              Reason::kTooManyPeers);
    ++told;
  }
  EXPECT_GE(told, 10U);
}

// Guests that never say a word, and would stay for a minute.
TEST_F(ForgedClientTest, ACrowdMakesRoomForOthersOfItsOrigin) {
  const auto victim = patient_engine();
  const auto honest = make_engine("honest");
  const ForgedPeer stranger(*victim);
  std::vector<UniqueFd> crowd;
  for (size_t i = 0; i < kCrowd; ++i) crowd.push_back(stranger.dial_unix());
  ASSERT_TRUE(crowded(*victim));
  EXPECT_TRUE(eventually([&] { return honest->connect(victim->descriptor()).ok(); }));
}

TEST_F(ForgedClientTest, ACrowdMakesRoomForOthersFromElsewhereAtOnce) {
  const auto victim = patient_engine();
  EngineOptions far = options("honest");
  far.transports = {"tcp"};
  const auto honest = must(Engine::create(far));
  std::vector<UniqueFd> crowd;
  for (size_t i = 0; i < kCrowd; ++i) crowd.push_back(dial_from("127.0.0.2", victim->address()));
  ASSERT_TRUE(crowded(*victim));
  EXPECT_OK(honest->connect(victim->descriptor()).status());
}

TEST_F(ForgedClientTest, DataConnectionNeedsAControlConnection) {
  const auto victim = make_engine("victim");
  const ForgedPeer forged(*victim);
  const UniqueFd data = forged.dial_unix();
  const auto answer = forged.greet(data.get(), wire::Role::kData);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(reason_of(*answer), Reason::kPermission);
  EXPECT_TRUE(hangs_up(data.get()));
}

TEST_F(ForgedClientTest, DataConnectionsEndWithTheLastControlConnection) {
  const auto victim = make_engine("victim");
  const ForgedPeer forged(*victim);
  UniqueFd first = forged.dial_unix();
  UniqueFd second = forged.dial_unix();
  for (const UniqueFd* control : {&first, &second}) {
    ASSERT_EQ(forged.greet(control->get(), wire::Role::kControl)->header.type,
              wire::FrameType::kWelcome);
  }
  const UniqueFd data = forged.dial_unix();
  ASSERT_EQ(forged.greet(data.get(), wire::Role::kData)->header.type, wire::FrameType::kWelcome);
  first.reset();
  ASSERT_TRUE(eventually([&] { return metric(*victim, "inbound_peers") == 1; }));
  pollfd still{data.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&still, 1, 0), 0) << "ended while a control connection was left";
  second.reset();
  EXPECT_TRUE(hangs_up(data.get()));
}

TEST_F(ForgedClientTest, AnswersThatAreNeverReadHoldFewDescriptors) {
  const auto victim = make_engine("victim");
  const Region region = must(victim->allocate(4096));
  const ForgedPeer forged(*victim);
  const UniqueFd control = forged.dial_unix();
  ASSERT_EQ(forged.greet(control.get(), wire::Role::kControl)->fds.size(), 4U);
  const size_t before = open_fds();
  const RegionDesc desc = region.descriptor();
  const auto ref = wire::encode(wire::RegionRef{desc.index, desc.generation});
  size_t most = before;
  Status sent;
  for (int i = 0; i < 20'000 && sent.ok(); ++i) {
    sent =
        transport::send_frame(control.get(), wire::FrameType::kGetRegion, 1, ref, Deadline::in(5s));
    if (i % 64 == 0) most = std::max(most, open_fds());
  }
  EXPECT_FALSE(sent.ok()) << "the connection should have ended";
  EXPECT_LT(most - before, 100U);
}

TEST_F(ForgedClientTest, MessagesOfManyDepartedPeersAreBounded) {
  const auto victim = make_engine("victim");
  const ForgedPeer forged(*victim);
  constexpr size_t kVisitors = 300;
  for (size_t i = 0; i < kVisitors; ++i) {
    UniqueFd control = forged.dial_unix();
    auto welcome = forged.greet(control.get(), wire::Role::kControl);
    ASSERT_TRUE(welcome.has_value());
    auto page = must(memory::SharedPages::open(std::move(welcome->fds.at(1)), wire::kPeerPageBytes,
                                               /*writable=*/true));
    transport::NotifyProducer producer(*page.at<wire::PeerPage>());
    ASSERT_TRUE(producer.push(Reason::kOk, bytes_of(std::to_string(i))));
    control.reset();
    ASSERT_TRUE(eventually([&] { return metric(*victim, "inbound_peers") == 0; }));
  }
  const auto messages = must(victim->notifications(0s, 2 * kVisitors));
  EXPECT_GT(messages.size(), 100U);
  EXPECT_LT(messages.size(), kVisitors);
  EXPECT_EQ(text_of(messages.back().payload), std::to_string(kVisitors - 1));
}

// The eventfd is one for all peers, and so are its flags.
TEST_F(ForgedClientTest, BellThatAPeerMakesBlockingHoldsNobody) {
  const auto victim = make_engine("victim");
  const ForgedPeer forged(*victim);
  const UniqueFd control = forged.dial_unix();
  const auto welcome = forged.greet(control.get(), wire::Role::kControl);
  ASSERT_TRUE(welcome.has_value());
  ASSERT_EQ(::fcntl(welcome->fds.at(3).get(), F_SETFL, 0), 0);
  ASSERT_OK(victim->fileno().status());
  for (int i = 0; i < 3; ++i) {
    const auto before = std::chrono::steady_clock::now();
    EXPECT_TRUE(must(victim->notifications(10ms)).empty());
    EXPECT_LT(std::chrono::steady_clock::now() - before, 10s);
  }
}

}  // namespace
}  // namespace stagelink::test
