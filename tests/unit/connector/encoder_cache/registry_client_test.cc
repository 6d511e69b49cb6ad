#include "connector/encoder_cache/registry/registry_client.h"

#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "connector/encoder_cache/registry/publisher.h"
#include "integration/support/eventually.h"
#include "unit/connector/encoder_cache/registry_test.h"

namespace stagelink::encoder_cache::test {
namespace {

using stagelink::test::eventually;

TEST(RegistryClientTest, BadUrlsAreRefusedByName) {
  for (const char* url : {"", "127.0.0.1:1", "https://h:1", "http://h", "http://h:0",
                          "http://h:99999", "http://h:1/a?b", "ftp://h:1"}) {
    EXPECT_EQ(RegistryClient::create({.url = url}).status().code(), Code::kInvalidArgument) << url;
  }
  EXPECT_TRUE(RegistryClient::create({.url = "http://[::1]:1/"}).ok());
}

TEST(RegistryClientTest, ARegistryThatIsNotThereIsUnreachable) {
  auto server = start_registry();
  const auto client = client_of(*server);
  ASSERT_TRUE(client->lookup("a", soon()).ok());
  server.reset();
  EXPECT_EQ(client->lookup("a", soon()).status().code(), Code::kUnreachable);
}

TEST(RegistryClientTest, AConnectionThatHasGoneStaleIsReplacedUnseen) {
  RegistryOptions options{.idle_timeout = 50ms};
  auto server = start_registry(options);
  options.port = server->endpoint().port;
  const auto client = client_of(*server);
  ASSERT_TRUE(client->lookup("a", soon()).ok());
  const auto first = client->instance();
  server.reset();
  server = start_registry(options);
  ASSERT_TRUE(client->lookup("a", soon()).ok());
  EXPECT_NE(client->instance(), first);
}

// Accepts one connection and says what it is told to.
class FakeRegistry {
 public:
  explicit FakeRegistry(std::string answer)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_.get(), raw, size) != 0 || ::listen(listener_.get(), 4) != 0 ||
        ::getsockname(listener_.get(), raw, &size) != 0) {
      throw std::runtime_error("no port");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer)] {
      const UniqueFd fd(::accept(listener_.get(), nullptr, nullptr));
      char bytes[4096];
      if (::recv(fd.get(), bytes, sizeof bytes, 0) <= 0) return;
      ::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
      ::shutdown(fd.get(), SHUT_WR);
      while (::recv(fd.get(), bytes, sizeof bytes, 0) > 0) continue;
    });
  }
  ~FakeRegistry() { thread_.join(); }
  Result<std::optional<ProducerEntry>> ask() const {
    auto client = RegistryClient::create(
        {.url = fmt::format("http://127.0.0.1:{}", port_), .max_body_bytes = 1000});
    return (*client)->lookup("a", soon());
  }

 private:
  UniqueFd listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

TEST(RegistryClientTest, WhateverAServerSaysIsAnAnswerOrAnError) {
  const std::string good =
      R"({"nbytes":64,"shape":[4,8],"dtype":"bfloat16","producer_zmq":"tcp://h:1"})";
  const auto with_length = [](int status, std::string_view body) {
    return fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body);
  };
  const std::vector<std::pair<std::string, Reason>> answers = {
      {with_length(200, good), Reason::kOk},
      {"HTTP/1.1 200 OK\r\n\r\n" + good, Reason::kOk},  // Up to the end of the connection.
      {with_length(404, "{\"detail\":\"unknown mm_hash\"}"), Reason::kOk},
      {with_length(500, "oops"), Reason::kFrame},
      {with_length(302, ""), Reason::kFrame},
      {with_length(200, "<html>"), Reason::kFrame},
      {with_length(200, "{\"nbytes\":1}"), Reason::kFrame},
      {with_length(200, std::string(1001, ' ')), Reason::kTooLarge},
      {"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n ", Reason::kTooLarge},
      {"HTTP/1.1 200 OK\r\n\r\n" + std::string(1001, ' '), Reason::kTooLarge},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, ' '),
       Reason::kTooLarge},
      {"HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x'), Reason::kTooLarge},
      {"SSH-2.0-OpenSSH_9.2\r\n", Reason::kFrame},
      {"HTTP/1.1 200 OK\r\nContent-Length: 80\r\n\r\n{", Reason::kConnectionCut},
      {"HTTP/1.1 200", Reason::kConnectionCut},
      {"", Reason::kConnectionCut},
  };
  for (const auto& [answer, reason] : answers) {
    const FakeRegistry fake(answer);
    EXPECT_EQ(fake.ask().status().reason(), reason) << answer.substr(0, 60);
  }
}

TEST(RegistryClientTest, ASilentRegistryCostsTheDeadlineAndAnInterruptEndsIt) {
  const auto server = start_registry();
  const auto client = client_of(*server);
  EXPECT_EQ(client->lookup("a", Deadline::in(30ms), 20s).status().code(), Code::kTimedOut);
  std::thread later([&] {
    EXPECT_TRUE(eventually([&] { return server->waiting() == 1; }));
    client->interrupt();
  });
  EXPECT_EQ(client->lookup("a", soon(), 20s).status().code(), Code::kCancelled);
  later.join();
  EXPECT_EQ(client->lookup("a", soon()).status().code(), Code::kCancelled);
}

std::unique_ptr<RegistryPublisher> publisher_of(const RegistryServer& server,
                                                Duration lease_ttl = 30s) {
  auto publisher = RegistryPublisher::start({.registry = {.url = url_of(server)},
                                             .producer_zmq = "tcp://127.0.0.1:5000",
                                             .lease_ttl = lease_ttl});
  if (!publisher.ok()) throw std::runtime_error(publisher.status().to_string());
  return *std::move(publisher);
}

TEST(RegistryPublisherTest, TellsInTheBackgroundWhatIsThereAndWhatIsGone) {
  const auto server = start_registry();
  const auto publisher = publisher_of(*server);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(publisher->publish(item_of(std::to_string(i))).ok());
  ASSERT_TRUE(publisher->flush(soon()).ok());
  EXPECT_EQ(server->table().usage().entries, 1000u);
  for (int i = 0; i < 999; ++i) ASSERT_TRUE(publisher->unpublish(std::to_string(i)).ok());
  ASSERT_TRUE(publisher->unpublish("never there").ok());
  ASSERT_TRUE(publisher->flush(soon()).ok());
  EXPECT_EQ(server->table().usage().entries, 1u);
  EXPECT_EQ(publisher->entries(), 1u);
  EXPECT_EQ(publisher->counts().published, 1000u);
  publisher->close(soon());
  EXPECT_FALSE(server->table().lookup("999").has_value());
  EXPECT_EQ(publisher->publish(item_of("x")).reason(), Reason::kClosed);
}

TEST(RegistryPublisherTest, ALeaseIsRenewedWhileNothingHappens) {
  const auto server = start_registry();
  const auto publisher = publisher_of(*server, 2s);
  ASSERT_TRUE(publisher->publish(item_of("a")).ok());
  ASSERT_TRUE(publisher->flush(soon()).ok());
  EXPECT_TRUE(eventually([&] {
    return server->metrics_text().find("{request=\"renew\",status=\"200\"} 2\n") !=
           std::string::npos;
  }));
  EXPECT_TRUE(server->table().lookup("a").has_value());
}

TEST(RegistryPublisherTest, ARestartedRegistryIsToldAllAgain) {
  RegistryOptions options{};
  auto server = start_registry(options);
  options.port = server->endpoint().port;
  const auto publisher = publisher_of(*server, 600ms);
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(publisher->publish(item_of(std::to_string(i))).ok());
  ASSERT_TRUE(publisher->flush(soon()).ok());
  server.reset();
  ASSERT_TRUE(publisher->publish(item_of("meanwhile")).ok());
  EXPECT_EQ(publisher->flush(Deadline::in(20ms)).code(), Code::kTimedOut);
  server = start_registry(options);
  EXPECT_TRUE(eventually([&] { return server->table().usage().entries == 301; }));
  EXPECT_TRUE(publisher->flush(soon()).ok());
  EXPECT_GE(publisher->counts().failures, 1u);
  EXPECT_GE(publisher->counts().republished, 1u);
}

TEST(RegistryPublisherTest, ARegistryThatNeverComesKeepsNobodyFromClosing) {
  auto server = start_registry();
  const std::string url = url_of(*server);
  server.reset();
  auto publisher = RegistryPublisher::start(
      {.registry = {.url = url}, .producer_zmq = "tcp://127.0.0.1:5000", .max_entries = 2});
  ASSERT_TRUE(publisher.ok());
  EXPECT_TRUE((*publisher)->publish(item_of("a")).ok());
  EXPECT_TRUE((*publisher)->publish(item_of("b")).ok());
  EXPECT_EQ((*publisher)->publish(item_of("c")).code(), Code::kLimit);
  EXPECT_EQ((*publisher)->publish(item_of("\n")).code(), Code::kInvalidArgument);
  (*publisher)->close(Deadline::in(5s));
}

}  // namespace
}  // namespace stagelink::encoder_cache::test
