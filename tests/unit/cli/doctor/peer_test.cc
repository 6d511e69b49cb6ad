// Who answers at an address, told by what it says.

#include <cerrno>
#include <functional>
#include <thread>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/unique_fd.h"
#include "cli/doctor/peer/peer_check.h"
#include "cli/doctor/peer/probe.h"
#include "cli/doctor/peer/throughput.h"
#include "connector/encoder_cache/registry/registry_server.h"
#include "connector/zmq/socket.h"
#include "engine/link/listen_socket.h"
#include "stagelink/engine.h"
#include "stagelink/version.h"
#include "transport/blocking_frames.h"
#include "unit/cli/doctor/command.h"

namespace stagelink::cli::doctor {
namespace {

using namespace std::chrono_literals;

// Accepts one connection after the other and leaves each to `talk`, until it goes.
class FakePeer {
 public:
  explicit FakePeer(std::function<void(int fd)> talk) {
    Endpoint bound;
    auto socket = engine::listen_tcp_socket({"127.0.0.1", 0}, bound);
    if (!socket.ok()) std::abort();
    listener_ = *std::move(socket);
    address_ = bound;
    thread_ = std::thread([this, talk = std::move(talk)] {
      for (;;) {
        pollfd waiting{.fd = listener_.get(), .events = POLLIN, .revents = 0};
        ::poll(&waiting, 1, -1);
        const UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
        if (!fd && errno != EAGAIN) return;
        if (fd) talk(fd.get());
      }
    });
  }
  ~FakePeer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  Endpoint endpoint() const { return address_; }
  std::string address() const { return address_.to_string(); }

 private:
  UniqueFd listener_;
  Endpoint address_;
  std::thread thread_;
};

void write_text(int fd, std::string_view text) {
  (void)::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
}

// Until the other side has closed.
void drain(int fd) {
  char byte = 0;
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  while (::poll(&waiting, 1, 10'000) > 0 && ::recv(fd, &byte, 1, 0) > 0) {
  }
}

TEST(DoctorPeerTest, APeerOfAnotherVersionIsNamedWithBothVersions) {
  const std::string ours = std::to_string(kProtocolMajor) + "." + std::to_string(kProtocolMinor);
  // It refuses our hello with its own view of the two, or welcomes us and leaves it to us.
  const FakePeer refuses([&](int fd) {
    if (!transport::receive_frame(fd, Deadline::in(10s)).ok()) return;
    const wire::Outcome outcome{Reason::kVersion,
                                "hello speaks protocol " + ours + ", we speak 7.3"};
    (void)transport::send_frame(fd, wire::FrameType::kRefuse, 0, wire::encode(outcome),
                                Deadline::in(10s));
    drain(fd);
  });
  const FakePeer welcomes([](int fd) {
    if (!transport::receive_frame(fd, Deadline::in(10s)).ok()) return;
    wire::Welcome welcome;
    welcome.version = {7, 3};
    (void)transport::send_frame(fd, wire::FrameType::kWelcome, 0, wire::encode(welcome),
                                Deadline::in(10s));
    drain(fd);
  });
  for (const std::string& address : {refuses.address(), welcomes.address()}) {
    const auto outcome = doctor({"--json", "--only", "peers", "--peer", address});
    EXPECT_EQ(outcome.exit_code, kExitFailed);
    const std::string what = outcome.finding("peer_version")["what"];
    EXPECT_TRUE(contains(what, "speaks protocol 7.3")) << what;
    EXPECT_TRUE(contains(what, "this one " + ours)) << what;
  }
  EXPECT_EQ(version_in_refusal("hello speaks protocol 1.2, we speak 70000.1"), std::nullopt);
  EXPECT_EQ(version_in_refusal("no version"), std::nullopt);
}

TEST(DoctorPeerTest, WithoutPeersOrWithAUrlItIsSaidWhatToGive) {
  const auto none = doctor({"--json", "--only", "peers"});
  EXPECT_EQ(none.exit_code, kExitOk) << none.err;
  EXPECT_NE(none.finding("no_peers")["do"].get<std::string>().find("--peer"), std::string::npos);
  const auto url = doctor({"--json", "--only", "peers", "--peer", "http://127.0.0.1:9018"});
  EXPECT_NE((url.out + url.err).find("http:// is not a part of it"), std::string::npos)
      << url.out << url.err;
}

TEST(DoctorPeerTest, WhoeverElseAnswersIsToldApart) {
  const FakePeer http([](int fd) {
    char request[512];
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, 10'000);
    (void)::recv(fd, request, sizeof request, 0);
    write_text(fd, "HTTP/1.1 400 Bad Request\r\n\r\n");
    drain(fd);
  });
  const FakePeer ssh([](int fd) {
    write_text(fd, "SSH-2.0-OpenSSH_9.2\r\n");
    drain(fd);
  });
  const FakePeer silent([](int fd) { drain(fd); });
  const FakePeer rude([](int) {});
  const auto looked = [](const FakePeer& peer) {
    return doctor({"--json", "--only", "peers", "--timeout", "300ms", "--peer", peer.address()});
  };
  EXPECT_TRUE(contains(looked(http).finding("peer_other")["what"].get<std::string>(),
                       "`HTTP/1.1 400 Bad Request`"));
  EXPECT_TRUE(contains(looked(ssh).finding("peer_other")["what"].get<std::string>(),
                       "`SSH-2.0-OpenSSH_9.2`"));
  EXPECT_TRUE(
      contains(looked(silent).finding("peer_silent")["what"].get<std::string>(), "nothing"));
  EXPECT_TRUE(contains(looked(rude).finding("peer_other")["what"].get<std::string>(), "closes"));
}

TEST(DoctorPeerTest, ARegistryOfEmbeddingsIsKnownForWhatItIs) {
  const Tree tree;
  const std::string secret = tree.write("secret", std::string(32, 's'));
  const std::string other = tree.write("other", std::string(32, 'o'));
  for (const std::string& file : {secret, other}) {
    std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  }
  encoder_cache::RegistryOptions options;
  options.host = "127.0.0.1";
  options.port = 0;
  const auto looked = [](const encoder_cache::RegistryServer& registry, const std::string& file) {
    return doctor({"--json", "--only", "peers", "--timeout", "2s", "--peer",
                   registry.endpoint().to_string(), "--option", "secret_file=" + file});
  };
  auto open = encoder_cache::RegistryServer::start(options);
  ASSERT_TRUE(open.ok()) << open.status().to_string();
  const auto known = looked(**open, "");
  EXPECT_EQ(known.exit_code, kExitOk) << known.out;
  EXPECT_TRUE(contains(known.out, "a registry of embeddings (HTTP), instance ")) << known.out;
  options.secret_file = secret;
  auto closed = encoder_cache::RegistryServer::start(options);
  ASSERT_TRUE(closed.ok()) << closed.status().to_string();
  EXPECT_EQ(looked(**closed, secret).exit_code, kExitOk);
  EXPECT_TRUE(contains(looked(**closed, "").finding("peer_secret")["what"].get<std::string>(),
                       "asks for a secret"));
  EXPECT_TRUE(contains(looked(**closed, other).finding("peer_secret")["what"].get<std::string>(),
                       "another secret"));
}

TEST(DoctorPeerTest, ARegistryOfTheOriginalProtocolIsKnownByItsAnswer) {
  const FakePeer registry([](int fd) {
    char request[512];
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, 10'000);
    const ssize_t got = ::recv(fd, request, sizeof request, 0);
    const bool asked = contains({request, static_cast<size_t>(got)}, "GET /ec/info/");
    write_text(fd, asked ? "HTTP/1.1 404 Not Found\r\ncontent-length: 28\r\n\r\n"
                           "{\"detail\":\"unknown mm_hash\"}"
                         : "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    drain(fd);
  });
  const auto outcome = doctor({"--json", "--only", "peers", "--peer", registry.address()});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "of the original protocol")) << outcome.out;
  // A sender of a pipeline that is one, is not what its receiver needs.
  PeerFacts facts = probe_peer(registry.endpoint(), {});
  facts.http = probe_http(registry.endpoint(), "", 5s);
  const PeerPlace sender = {"sender", registry.endpoint(), Speaks::kZmq, false};
  EXPECT_TRUE(contains(with_cause(judge_peer({}, sender, facts), "peer_other").action, "zmq_port"));
}

TEST(DoctorPeerTest, ASecretOnOneSideAloneIsNamed) {
  const Tree tree;
  const std::string secret = tree.write("secret", std::string(32, 's'));
  const std::string other = tree.write("other", std::string(32, 'o'));
  for (const std::string& file : {secret, other}) {
    std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  }
  EngineOptions options = engine_options(tree, "with");
  options.secret_file = secret;
  auto with = Engine::create(options);
  ASSERT_TRUE(with.ok());
  auto without = Engine::create(engine_options(tree, "without"));
  ASSERT_TRUE(without.ok());
  const auto looked = [](const Engine& engine, const std::string& file) {
    return doctor({"--json", "--only", "peers", "--peer", engine.address(), "--option",
                   "secret_file=" + file});
  };
  EXPECT_EQ(looked(**with, secret).exit_code, kExitOk);
  EXPECT_EQ(looked(**with, "").finding("peer_secret")["level"], "error");
  EXPECT_EQ(looked(**with, other).finding("peer_secret")["level"], "error");
  EXPECT_EQ(looked(**without, secret).finding("peer_secret")["level"], "error");
  EXPECT_EQ(looked(**without, tree.path("none")).finding("secret_file")["level"], "error");
}

TEST(DoctorPeerTest, AnEngineThatTakesNoPeersFromAfarSaysWhy) {
  const Tree tree;
  EngineOptions options = engine_options(tree, "local");
  options.transports = {"shm", "unix"};
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok());
  const auto outcome = doctor({"--json", "--only", "peers", "--peer", (*engine)->address()});
  const std::string what = outcome.finding("peer_refuses")["what"];
  EXPECT_TRUE(contains(what, "tcp is not among")) << what;
}

TEST(DoctorPeerTest, ZeroMqIsKnownByItsGreeting) {
  auto library = zmq::Library::load();
  if (!library.ok()) GTEST_SKIP() << library.status().to_string();
  auto context = zmq::Context::create(*library);
  ASSERT_TRUE(context.ok());
  zmq::BindOptions options;
  options.host = "127.0.0.1";
  auto router = zmq::Router::bind(*context, options);
  ASSERT_TRUE(router.ok()) << router.status().to_string();
  const auto facts = probe_peer(router->endpoint(), {});
  EXPECT_EQ(facts.answer, Answer::kZmq);
  EXPECT_EQ(facts.zmq.major, 3);
  EXPECT_EQ(facts.zmq.mechanism, "NULL");
  EXPECT_GT(facts.path_mtu, 1280);
}

TEST(DoctorPeerTest, ThroughputIsMeasuredAgainstAnotherDoctor) {
  const Tree tree;
  EngineOptions options = engine_options(tree, "");
  auto partner = Partner::create(options);
  ASSERT_TRUE(partner.ok()) << partner.status().to_string();
  const auto address = parse_endpoint((*partner)->address());
  options.name = "guest";
  for (const char* transport : {"unix", "tcp"}) {
    options.transports = {transport};
    auto measured = measure_throughput(options, *address, 1s, 32 << 20);
    ASSERT_TRUE(measured.ok()) << measured.status().to_string();
    EXPECT_EQ(measured->route, transport);
    EXPECT_GE(measured->bytes, 32U << 20);
    EXPECT_LE(measured->bytes, 48U << 20);  // One read beyond it at most.
  }
  auto engine = Engine::create(engine_options(tree, "at work"));
  ASSERT_TRUE(engine.ok());
  options.transports = {"unix", "tcp"};
  const auto refused = measure_throughput(options, *parse_endpoint((*engine)->address()), 1s, 1);
  EXPECT_EQ(refused.status().reason(), Reason::kUnsupported);
}

TEST(DoctorPeerTest, WhatAPartnerTellsIsBounded) {
  const auto told = partner_memory(partner_name({0x7f0000001000, 4096}));
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->address, 0x7f0000001000U);
  EXPECT_EQ(told->bytes, 4096U);
  EXPECT_TRUE(partner_memory("stagelink-doctor 1 67108864").has_value());
  for (const char* wrong :
       {"decode-0", "stagelink-doctor ", "stagelink-doctor 1", "stagelink-doctor x 1",
        "stagelink-doctor 1 0", "stagelink-doctor 1 67108865", "stagelink-doctor 1 1 ",
        "stagelink-doctor 1 99999999999999999999"}) {
    EXPECT_FALSE(partner_memory(wrong).has_value()) << wrong;
  }
}

}  // namespace
}  // namespace stagelink::cli::doctor
