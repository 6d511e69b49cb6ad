#include "connector/moriio/wrapper/wrapper.h"

#include <algorithm>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "integration/support/eventually.h"
#include "unit/connector/zmq/zmq_test.h"

namespace stagelink::moriio {
namespace {

using stagelink::test::eventually;
using zmq::test::bytes_of;
using zmq::test::make_context;
using zmq::test::soon;
using namespace std::chrono_literals;

WrapperOptions options_of(Role role) {
  WrapperOptions options;
  options.table.role = role;
  options.table.tp_size = 1;
  return options;
}

RemoteBlocks blocks(const std::string& id) { return {"request", id, {4, 5}, 0, {}}; }

// A producer that listens, and somebody who sends to it whatever bytes there are.
class MoriioListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto endpoint = wrapper_.listen({});
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
    address_ = *endpoint;
    auto dealer = zmq::Dealer::connect(context_, address_);
    ASSERT_TRUE(dealer.ok());
    attacker_ = std::make_unique<zmq::Dealer>(*std::move(dealer));
  }
  void attack(const zmq::Frames& frames) {
    std::vector<zmq::FrameSpan> spans(frames.begin(), frames.end());
    ASSERT_TRUE(attacker_->send(spans, soon()).ok());
  }
  // The listener still acts upon a message.
  void expect_alive(const std::string& id) {
    ASSERT_TRUE(wrapper_.table().expect(id, {}).ok());
    Wrapper sender(options_of(Role::kConsumer));
    ASSERT_TRUE(sender.notify_and_wait(address_, blocks(id), 20s).ok());
    EXPECT_TRUE(eventually([&] { return wrapper_.table().allocation(id) != nullptr; }));
  }
  uint64_t rejected(Reject reason) { return wrapper_.table().rejects().of(reason); }

  std::shared_ptr<zmq::Context> context_ = make_context();
  Wrapper wrapper_{options_of(Role::kProducer)};
  Endpoint address_;
  std::unique_ptr<zmq::Dealer> attacker_;
};

TEST_F(MoriioListenerTest, NoFrameEndsTheListener) {
  SplitMix64 random(7);
  for (int i = 0; i < 500; ++i) {
    zmq::Bytes garbage(random.below(300));
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random.next());
    attack({garbage});
  }
  attack({});
  attack({bytes_of("")});
  attack({bytes_of("one"), bytes_of("two"), bytes_of("three")});
  attack(zmq::Frames(100, bytes_of("many")));
  attack({bytes_of("\x81\xa4type\xa4nope")});
  attack({bytes_of("\x81\xa4type\xa7release")});
  expect_alive("after garbage");
  // The attacker's last message comes last.
  EXPECT_TRUE(eventually([&] { return rejected(Reject::kBadField) >= 1; }));
  EXPECT_GE(rejected(Reject::kUnknownType), 1U);
  EXPECT_GE(rejected(Reject::kFrames), 2U);
  EXPECT_GT(wrapper_.table().rejects().total(), 100U);
}

TEST_F(MoriioListenerTest, APickleIsNotRun) {
  const std::string marker = fmt::format("/tmp/stagelink-pickle-{}", ::getpid());
  ::unlink(marker.c_str());
  attack({bytes_of(fmt::format("cposix\nsystem\n(S'touch {}'\ntR.", marker))});
  expect_alive("after the pickle");
  EXPECT_NE(::access(marker.c_str(), F_OK), 0);
}

TEST_F(MoriioListenerTest, AHugeFrameCostsItsSenderTheConnectionAndNobodyElse) {
  attack({zmq::Bytes(kMaxNotifyBytes + 1)});
  expect_alive("after the frame");
}

TEST_F(MoriioListenerTest, TheLogOfAFloodStaysShort) {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 5000; ++i) attack({bytes_of("\xff\xfe")});
  const bool all = eventually([&] { return rejected(Reject::kMalformed) >= 5000; });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(all);
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 200);
}

TEST_F(MoriioListenerTest, ASecondListenAnswersWhereTheFirstListens) {
  auto again = wrapper_.listen({.port = 1});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->port, address_.port);
}

TEST(MoriioWrapperTest, AClosedWrapperRefusesAndItsPortIsFree) {
  Wrapper wrapper(options_of(Role::kProducer));
  auto endpoint = wrapper.listen({});
  ASSERT_TRUE(endpoint.ok());
  wrapper.close();
  wrapper.close();
  EXPECT_EQ(wrapper.listen({}).status().reason(), Reason::kClosed);
  EXPECT_EQ(wrapper.notify(*endpoint, blocks("tx")).reason(), Reason::kClosed);
  Wrapper next(options_of(Role::kProducer));
  EXPECT_TRUE(next.listen({.port = endpoint->port}).ok());
}

TEST(MoriioWrapperTest, WithoutZeroMqTheErrorNamesWhatToInstall) {
  WrapperOptions options = options_of(Role::kProducer);
  options.zmq_library = "/nowhere/libzmq.so.5";
  Wrapper wrapper(options);
  auto endpoint = wrapper.listen({});
  ASSERT_FALSE(endpoint.ok());
  EXPECT_NE(endpoint.status().message().find("libzmq5"), std::string_view::npos);
}

TEST(MoriioWrapperTest, ASecretThatCannotBeReadIsAnErrorAtOnce) {
  WrapperOptions options = options_of(Role::kProducer);
  options.secret_file = "/nowhere/secret";
  EXPECT_EQ(Wrapper(options).listen({}).status().reason(), Reason::kNotFound);
}

TEST(MoriioWrapperTest, EveryRejectAndEndIsOneCount) {
  Wrapper wrapper(options_of(Role::kConsumer));
  const auto series = [&](const std::string& line) {
    return wrapper.metrics_text().find(line) != std::string::npos;
  };
  EXPECT_TRUE(series("messages_rejected_total{port=\"notify\",reason=\"malformed\"} 0\n"));
  wrapper.handle_frame(bytes_of("\xff\xfe"));
  EXPECT_TRUE(series("messages_rejected_total{port=\"notify\",reason=\"malformed\"} 1\n"));
  ASSERT_TRUE(wrapper.table().expect("tx", {}).ok());
  wrapper.table().end(EventKind::kReceived, "tx", Status(Reason::kPeerLost, "gone"));
  wrapper.table().end(EventKind::kReceived, "tx", {});
  EXPECT_TRUE(series("transfers_ended_total{kind=\"received\",reason=\"peer_lost\"} 1\n"));
  EXPECT_FALSE(series("transfers_ended_total{kind=\"received\",reason=\"ok\"}"));
}

PeerMetadata metadata_of(const std::string& engine_id) {
  PeerMetadata metadata;
  metadata.agent.engine_id = engine_id;
  metadata.agent.agent_metadata = bytes_of("engine");
  metadata.agent.kv_caches_base_addr = {0x1000};
  metadata.agent.num_blocks = 16;
  metadata.agent.block_len = 4096;
  metadata.agent.attn_backend_name = "X";
  metadata.layers = {{"layer", {bytes_of("memory")}}};
  return metadata;
}

TEST(MoriioHandshakeTest, ManyPeersAreAskedAtOnceAndADeadOneHurtsOnlyItself) {
  const auto context = make_context();
  std::vector<std::unique_ptr<Wrapper>> servers;
  std::vector<Endpoint> peers;
  for (int i = 0; i < 8; ++i) {
    servers.push_back(std::make_unique<Wrapper>(options_of(Role::kConsumer)));
    auto endpoint = servers.back()->serve_metadata({}, metadata_of(fmt::format("engine {}", i)));
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
    peers.push_back(*endpoint);
  }
  // One that is connected to and never answers; one where nobody listens.
  auto silent = zmq::Router::bind(context, {});
  ASSERT_TRUE(silent.ok());
  peers.insert(peers.begin() + 3, silent->endpoint());
  const zmq::test::DeadPort gone;
  peers.push_back(gone.endpoint());
  Wrapper client(options_of(Role::kProducer));
  auto answers = client.fetch_metadata(peers, 2s);
  ASSERT_TRUE(answers.ok());
  ASSERT_EQ(answers->size(), 10U);
  EXPECT_EQ((*answers)[3].status().reason(), Reason::kConnectTimeout);
  EXPECT_EQ((*answers)[9].status().reason(), Reason::kConnectTimeout);
  for (const size_t i : {0, 1, 2, 4, 5, 6, 7, 8}) {
    ASSERT_TRUE((*answers)[i].ok()) << i << ": " << (*answers)[i].status().to_string();
    PeerMetadata answer = *(*answers)[i];
    EXPECT_EQ(answer.agent.engine_id, fmt::format("engine {}", i < 3 ? i : i - 1));
    EXPECT_EQ(answer.agent.extras.version, kMessageVersion);
    EXPECT_EQ(answer.layers, metadata_of("").layers);
  }
}

TEST(MoriioHandshakeTest, AnAnswerThatIsNoneIsRefused) {
  const auto context = make_context();
  auto liar = zmq::Router::bind(context, {});
  ASSERT_TRUE(liar.ok());
  std::thread answering([&] {
    auto question = liar->receive(soon());
    const zmq::Bytes nonsense = bytes_of("nonsense");
    const zmq::FrameSpan frames[] = {(**question)[0], zmq::FrameSpan(), nonsense};
    (void)liar->send(frames, soon());
  });
  const Endpoint peer = liar->endpoint();
  const auto answers = fetch_metadata(context, std::span(&peer, 1), 20s);
  answering.join();
  EXPECT_EQ(answers[0].status().code(), Code::kCorrupt);
}

TEST(MoriioHandshakeTest, OtherFramesAreCountedAndTheServerGoesOn) {
  const auto context = make_context();
  auto server = HandshakeServer::start(context, {}, metadata_of("engine"));
  ASSERT_TRUE(server.ok());
  const Endpoint peer = (*server)->endpoint();
  auto dealer = zmq::Dealer::connect(context, peer);
  ASSERT_TRUE(dealer.ok());
  for (const char* const text : {"GET / HTTP/1.1", "", "get_meta_msg ", "pop_done_recv"}) {
    ASSERT_TRUE(zmq::test::send_text(*dealer, text).ok());
  }
  EXPECT_TRUE(fetch_metadata(context, std::span(&peer, 1), 20s)[0].ok());
  EXPECT_TRUE(eventually([&] { return (*server)->rejects().of(Reject::kMalformed) == 3; }));
  EXPECT_EQ((*server)->served(), 1U);
}

TEST(MoriioWrapperTest, OnlyWhoHoldsTheSecretIsHeardAndAnswered) {
  const auto with_secret = [](Role role, char fill) {
    WrapperOptions options = options_of(role);
    options.secret_file =
        fmt::format("{}moriio_secret_{}_{}", ::testing::TempDir(), ::getpid(), fill);
    std::ofstream(options.secret_file) << std::string(kMinSecretBytes, fill);
    ::chmod(options.secret_file.c_str(), 0600);
    return options;
  };
  const WrapperOptions right = with_secret(Role::kProducer, 'r');
  Wrapper producer(right);
  auto notify = producer.listen({});
  ASSERT_TRUE(notify.ok()) << notify.status().to_string();
  auto handshake = producer.serve_metadata({}, metadata_of("engine"));
  ASSERT_TRUE(handshake.ok()) << handshake.status().to_string();
  const auto refused = [&](int peers) {
    return producer.metrics_text().find(
               fmt::format("peers_refused_total{{reason=\"authentication\"}} {}\n", peers)) !=
           std::string::npos;
  };
  EXPECT_TRUE(refused(0));

  Wrapper friendly(with_secret(Role::kConsumer, 'r'));
  EXPECT_TRUE(friendly.notify_and_wait(*notify, blocks("tx"), 20s).ok());
  auto answers = friendly.fetch_metadata(std::span(&*handshake, 1), 20s);
  ASSERT_TRUE(answers.ok());
  EXPECT_TRUE(answers->front().ok()) << answers->front().status().to_string();

  for (const WrapperOptions& options :
       {with_secret(Role::kConsumer, 'w'), options_of(Role::kConsumer)}) {
    Wrapper stranger(options);
    EXPECT_EQ(stranger.notify_and_wait(*notify, blocks("forged"), 200ms).reason(),
              Reason::kTimedOut);
    EXPECT_FALSE(refused(0));
  }
  ASSERT_TRUE(producer.table().expect("tx", {}).ok());
  EXPECT_NE(producer.table().allocation("tx"), nullptr);
  ASSERT_TRUE(producer.table().expect("forged", {}).ok());
  EXPECT_EQ(producer.table().allocation("forged"), nullptr);
}

}  // namespace
}  // namespace stagelink::moriio
