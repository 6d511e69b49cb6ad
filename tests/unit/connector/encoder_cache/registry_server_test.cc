#include "connector/encoder_cache/registry/registry_server.h"

#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "connector/encoder_cache/registry/http/http_server.h"
#include "engine/link/listen_socket.h"
#include "integration/support/eventually.h"
#include "integration/support/sanitized.h"
#include "integration/support/secret_files.h"
#include "unit/connector/encoder_cache/registry_test.h"

namespace stagelink::encoder_cache::test {
namespace {

using stagelink::test::eventually;

void publish(RegistryServer& server, const std::string& mm_hash) {
  const PublishedItem item = item_of(mm_hash);
  ASSERT_TRUE(server.publish(terms_of(5000), std::span(&item, 1)).ok());
}

// The status of the one answer that a raw request gets before the connection ends.
std::string answer_to(const RegistryServer& server, std::string_view bytes) {
  RawClient client(server.endpoint().port);
  client.send(bytes);
  client.half_close();
  return client.receive_answers(1);
}

TEST(RegistryServerTest, AnswersAsTheSeedsConsumersExpect) {
  const auto server = start_registry();
  publish(*server, "a b/%c");
  const std::string found = answer_to(*server, get("/ec/info/a%20b%2F%25c"));
  EXPECT_NE(found.find("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"), std::string::npos);
  EXPECT_TRUE(
      found.ends_with("{\"nbytes\":64,\"shape\":[4,8],\"dtype\":\"bfloat16\","
                      "\"producer_zmq\":\"tcp://127.0.0.1:5000\"}"))
      << found;
  // A seed's consumer leaves the slash as it is.
  EXPECT_TRUE(answer_to(*server, get("/ec/info/a%20b/%25c")).starts_with("HTTP/1.1 200"));
  const std::string missing = answer_to(*server, get("/ec/info/other"));
  EXPECT_TRUE(missing.starts_with("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_TRUE(missing.ends_with("{\"detail\":\"unknown mm_hash\"}"));
}

TEST(RegistryServerTest, WhatIsNoRequestOfItsOwnIsRefusedAndTheNextOneServed) {
  const auto server = start_registry();
  const auto post = [](std::string_view path, std::string_view body) {
    return fmt::format("POST {} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}", path, body.size(), body);
  };
  const std::string pickle = "\x80\x04\x95\x1e cposix\nsystem\n(S'touch x'\ntR.";
  const std::vector<std::pair<std::string, int>> requests = {
      {get("/"), 404},
      {get("/ec/info"), 404},
      {get("/ec/info/"), 404},
      {get("/ec/query"), 405},
      {post("/ec/info/a", ""), 405},
      {post("/healthz", ""), 405},
      {"DELETE /ec/info/a HTTP/1.1\r\n\r\n", 405},
      {get("/ec/info/%zz"), 400},
      {get("/ec/info/a?wait=x"), 400},
      {get("http://other/ec/info/a"), 400},
      {"OPTIONS * HTTP/1.1\r\n\r\n", 400},
      {get("/ec/info/%00%ff"), 404},
      {get("/ec/info/a?wait=0"), 404},
      {get("/ec/info/" + std::string(300, 'a') + "?wait=5"), 404},
      {post("/ec/query", pickle), 400},
      {post("/ec/publish", "{}"), 400},
      {post("/ec/unpublish", "[]"), 400},
      {post("/ec/renew", "{\"lease\":\"00\",\"ttl\":1}"), 400},
      {post("/ec/renew", fmt::format("{{\"lease\":\"{:032x}\",\"ttl\":1}}", 1)), 404},
  };
  RawClient client(server->endpoint().port);
  for (const auto& [request, status] : requests) {
    ASSERT_TRUE(client.send(request));
    EXPECT_TRUE(client.receive_answers(1).starts_with(fmt::format("HTTP/1.1 {} ", status)))
        << request.substr(0, 60);
  }
  EXPECT_TRUE(answer_to(*server, get("/healthz")).starts_with("HTTP/1.1 200"));
}

TEST(RegistryServerTest, RequestsThatComeTogetherAreAnsweredInTheirOrder) {
  const auto server = start_registry();
  publish(*server, "a");
  RawClient client(server->endpoint().port);
  std::string requests;
  for (int i = 0; i < 300; ++i) requests += get(i % 3 == 0 ? "/ec/info/a" : "/ec/info/b");
  ASSERT_TRUE(client.send(requests));
  const std::string answers = client.receive_answers(300);
  size_t at = 0;
  for (int i = 0; i < 300; ++i) {
    at = answers.find("HTTP/1.1 ", at);
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(answers.substr(at + 9, 3), i % 3 == 0 ? "200" : "404");
    ++at;
  }
}

TEST(RegistryServerTest, HeadAndOldClientsAreUnderstood) {
  const auto server = start_registry();
  publish(*server, "a");
  EXPECT_TRUE(answer_to(*server, "GET /ec/info/a HTTP/1.0\r\nExpect: bogus\r\n\r\n")
                  .starts_with("HTTP/1.1 200"));
  RawClient old(server->endpoint().port);
  old.send("GET /ec/info/a HTTP/1.0\r\n\r\n");
  EXPECT_NE(old.receive_all().find("Connection: close"), std::string::npos);
  RawClient head(server->endpoint().port);
  head.send("HEAD /ec/info/a HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(head.receive_all().ends_with("\r\n\r\n"));
}

TEST(RegistryServerTest, WhatIsNoHttpIsRefusedAndCounted) {
  const auto server = start_registry({.max_body_bytes = 1000});
  for (const auto& [bytes, status] : std::vector<std::pair<std::string, int>>{
           {"\x16\x03\x01 no http\r\n\r\n", 400},
           {"GET / HTTP/1.1\r\nX: " + std::string(100'000, 'x'), 431},
           {"GET /healthz HTTP/1.1\r\nExpect: bogus\r\n\r\n", 417},
           {"POST /ec/query HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413}}) {
    RawClient client(server->endpoint().port);
    client.send(bytes);
    EXPECT_TRUE(client.receive_all().starts_with(fmt::format("HTTP/1.1 {} ", status)));
  }
  EXPECT_NE(server->metrics_text().find("stagelink_registry_malformed_total 4\n"),
            std::string::npos);
}

TEST(RegistryServerTest, ASlowClientCostsItsConnectionAndNobodyElseAnything) {
  const auto server = start_registry({.request_timeout = 100ms});
  RawClient slow(server->endpoint().port);
  RawClient silent(server->endpoint().port);
  slow.send("GET /ec/info/a HTTP/1.1\r\nX: ");
  EXPECT_TRUE(answer_to(*server, get("/healthz")).starts_with("HTTP/1.1 200"));
  EXPECT_EQ(slow.receive_all(), "");
  EXPECT_EQ(silent.receive_all(), "");
  EXPECT_NE(server->metrics_text().find("stagelink_registry_slow_total 1\n"), std::string::npos);
}

TEST(RegistryServerTest, AKeptConnectionThatAsksNothingEndsInItsTime) {
  const auto server = start_registry({.idle_timeout = 100ms});
  RawClient client(server->endpoint().port);
  client.send(get("/healthz"));
  EXPECT_NE(client.receive_all(), "");
  EXPECT_NE(server->metrics_text().find("stagelink_registry_slow_total 0\n"), std::string::npos);
}

TEST(RegistryServerTest, WhoAsksNothingMakesRoomForWhoAsks) {
  // Nobody leaves by time while this waits.
  const auto server = start_registry({.max_connections = 2, .request_timeout = 60s});
  RawClient silent(server->endpoint().port);
  RawClient half(server->endpoint().port);
  ASSERT_TRUE(half.send("GET /hea"));
  ASSERT_TRUE(eventually([&] {
    RawClient honest(server->endpoint().port);
    honest.send(get("/healthz"));
    return honest.receive_answers(1).starts_with("HTTP/1.1 200");
  }));
}

TEST(RegistryServerTest, ConnectionsBeyondTheBoundAreTurnedAway) {
  const auto server = start_registry({.max_connections = 2});
  RawClient one(server->endpoint().port);
  RawClient two(server->endpoint().port);
  ASSERT_TRUE(one.send(get("/healthz")) && two.send(get("/healthz")));
  ASSERT_NE(one.receive_answers(1) + two.receive_answers(1), "");
  RawClient three(server->endpoint().port);
  EXPECT_TRUE(three.receive_all().starts_with("HTTP/1.1 503"));
  one.reset();
  ASSERT_TRUE(eventually([&] {
    return server->metrics_text().find("stagelink_registry_connections 1\n") != std::string::npos;
  }));
  RawClient four(server->endpoint().port);
  four.send(get("/healthz"));
  EXPECT_TRUE(four.receive_answers(1).starts_with("HTTP/1.1 200"));
}

// A server that accepts nobody: the kernel alone keeps those who come.
TEST(RegistryServerTest, AsManyMayComeAtOnceAsMayBeOpen) {
  struct Deaf final : HttpHandler {
    HttpAnswer on_request(const HttpRequest&, uint64_t) override { return HttpResponse{}; }
    void on_unparked(uint64_t) override {}
    bool on_tick() override { return false; }
    void on_nudge() override {}
  } deaf;
  constexpr uint32_t kAtOnce = 400;
  Endpoint bound;
  auto listener = engine::listen_tcp_socket(Endpoint{"127.0.0.1", 0}, bound);
  ASSERT_TRUE(listener.ok());
  const auto server =
      HttpServer::create(*std::move(listener), {.max_connections = kAtOnce}, "", deaf);
  ASSERT_TRUE(server.ok());
  std::vector<std::unique_ptr<RawClient>> clients;
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < kAtOnce; ++i) clients.push_back(std::make_unique<RawClient>(bound.port));
  // One that finds no room is tried again by its kernel, for minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

TEST(RegistryServerTest, ABodyThatWaitsToBeAskedForIsAskedForOnce) {
  const auto server = start_registry();
  publish(*server, "a");
  RawClient client(server->endpoint().port);
  const std::string body = "{\"mm_hashes\":[\"a\"]}";
  for (int round = 0; round < 2; ++round) {
    client.send(
        fmt::format("POST /ec/query HTTP/1.1\r\nExpect: 100-Continue\r\n"
                    "Content-Length: {}\r\n\r\n",
                    body.size()));
    EXPECT_EQ(client.receive_through("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send(body.substr(0, 5));
    client.send(body.substr(5));
    EXPECT_TRUE(client.receive_answers(1).starts_with("HTTP/1.1 200 OK")) << round;
  }
  // What is too large is refused at once, and a client of HTTP/1.0 knows no such answer.
  client.send(
      "POST /ec/query HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
  EXPECT_TRUE(client.receive_answers(1).starts_with("HTTP/1.1 413"));
  RawClient old(server->endpoint().port);
  old.send(
      fmt::format("POST /ec/query HTTP/1.0\r\nExpect: 100-continue\r\n"
                  "Content-Length: {}\r\n\r\n{}",
                  body.size(), body));
  EXPECT_TRUE(old.receive_answers(1).starts_with("HTTP/1.1 200 OK"));
}

TEST(RegistryServerTest, AWaitBeyondTheBoundIsRefusedAndSaysSo) {
  const auto server = start_registry({.max_wait = 50ms});
  const auto client = client_of(*server);
  EXPECT_EQ(*client->lookup("a", soon(), 50ms), std::nullopt);
  const std::string refused = answer_to(*server, get("/ec/info/a?wait=0.051"));
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 400"));
  EXPECT_NE(refused.find("wait is 0.051 s; this registry lets a request wait 0.05 s at most"),
            std::string::npos)
      << refused;
  const std::vector<std::string> hashes = {"a"};
  EXPECT_EQ(client->query(hashes, soon(), 1s).status().reason(), Reason::kInvalidArgument);
}

TEST(RegistryServerTest, ATableThatCanHoldNothingIsRefusedAtTheStart) {
  RegistryOptions options{.port = 0};
  options.table.max_bytes = RegistryOptions::kMinTableBytes - 1;
  const Status status = RegistryServer::start(options).status();
  EXPECT_EQ(status.reason(), Reason::kInvalidArgument);
  EXPECT_NE(status.message().find("max_bytes is 65535"), std::string_view::npos);
  options.table.max_bytes = RegistryOptions::kMinTableBytes;
  publish(*start_registry(options), "a");
}

// Whoever reaches the registry can say nothing for others: what a producer has said stays.
TEST(RegistryServerTest, AStrangerChangesNothingOfAnotherProducersEntries) {
  const auto server = start_registry();
  publish(*server, "a");
  const auto post = [&](std::string_view path, std::string_view body) {
    return answer_to(*server, fmt::format("POST {} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}", path,
                                          body.size(), body));
  };
  const std::string lease = "00000000000000000000000000000007";
  post("/ec/unpublish", fmt::format(R"({{"lease":"{}","mm_hashes":["a"]}})", lease));
  post("/ec/unpublish", fmt::format(R"({{"lease":"{}","all":true}})", lease));
  EXPECT_TRUE(post("/ec/renew", fmt::format(R"({{"lease":"{}","ttl":0.001}})", lease))
                  .starts_with("HTTP/1.1 404"));
  // Sizes, shapes and addresses that cannot be.
  const std::vector<std::string> items = {
      R"({"mm_hash":"b","nbytes":18446744073709551608,"shape":[4,8],"dtype":"bfloat16","generation":1})",
      R"({"mm_hash":"b","nbytes":0,"shape":[0],"dtype":"bfloat16","generation":1})",
      R"({"mm_hash":"b","nbytes":64,"shape":[4294967296,4294967296],"dtype":"bfloat16","generation":1})",
      R"({"mm_hash":"b","nbytes":65,"shape":[4,8],"dtype":"bfloat16","generation":1})"};
  for (const std::string& item : items) {
    post("/ec/publish", fmt::format(R"({{"lease":"{}","ttl":30,"producer_zmq":"tcp://127.0.0.1:1",)"
                                    R"("items":[{}]}})",
                                    lease, item));
  }
  for (const char* address : {"tcp://127.0.0.1:0", "ipc:///tmp/x", "tcp://h:99999", ""}) {
    post("/ec/publish",
         fmt::format(R"({{"lease":"{}","ttl":30,"producer_zmq":"{}","items":[{{"mm_hash":"b",)"
                     R"("nbytes":64,"shape":[4,8],"dtype":"bfloat16","generation":1}}]}})",
                     lease, address));
  }
  SplitMix64 random(49);
  for (int i = 0; i < 200; ++i) {
    std::string noise(random.below(200), ' ');
    for (char& each : noise) each = static_cast<char>(random.below(256));
    (void)answer_to(*server, noise);
  }
  EXPECT_TRUE(answer_to(*server, get("/ec/info/a")).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(answer_to(*server, get("/ec/info/b")).starts_with("HTTP/1.1 404"));
  EXPECT_EQ(server->table().usage().entries, 1u);
}

TEST(RegistryServerTest, AClientThatReadsNothingIsEnded) {
  const auto server = start_registry({.request_timeout = 100ms});
  const PublishTerms terms = terms_of(1);
  std::string query;
  for (int i = 0; i < 500; ++i) {
    const PublishedItem item = item_of(fmt::format("{:064}", i));
    ASSERT_TRUE(server->publish(terms, std::span(&item, 1)).ok());
    query += fmt::format("{}\"{}\"", i == 0 ? "" : ",", item.mm_hash);
  }
  query = "{\"mm_hashes\":[" + query + "]}";
  const std::string request =
      fmt::format("POST /ec/query HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}", query.size(), query);
  RawClient deaf(server->endpoint().port);
  // Until neither side takes any more, and the server gives up.
  for (int i = 0; i < 1000 && deaf.send(request); ++i) continue;
  EXPECT_TRUE(eventually([&] {
    return server->metrics_text().find("stagelink_registry_connections 0\n") != std::string::npos;
  }));
}

TEST(RegistryServerTest, AWaitEndsWithThePublishOrAtItsDeadline) {
  const auto server = start_registry();
  const auto client = client_of(*server);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(*client->lookup("a", soon(), 30ms), std::nullopt);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 30ms);

  std::thread later([&] {
    EXPECT_TRUE(eventually([&] { return server->waiting() == 1; }));
    publish(*server, "other");
    publish(*server, "a");
  });
  auto found = client->lookup("a", soon(), 20s);
  later.join();
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_TRUE(found->has_value());
  EXPECT_EQ(server->waiting(), 0u);
  EXPECT_TRUE((*client->lookup("a", soon(), 20s)).has_value()) << "what is there is not waited for";
}

TEST(RegistryServerTest, ABatchWaitsForTheFirstOfItsHashes) {
  const auto server = start_registry();
  const auto client = client_of(*server);
  const std::vector<std::string> hashes = {"a", "b", "a"};
  EXPECT_EQ(*client->query(hashes, soon(), 20ms), std::vector<std::vector<ProducerEntry>>(3));
  std::thread later([&] {
    EXPECT_TRUE(eventually([&] { return server->waiting() == 1; }));
    publish(*server, "b");
  });
  auto found = client->query(hashes, soon(), 20s);
  later.join();
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_TRUE((*found)[0].empty());
  ASSERT_EQ((*found)[1].size(), 1u);
  EXPECT_EQ((*found)[1][0].generation, 1u);
}

TEST(RegistryServerTest, AWaitingClientThatLeavesIsForgottenAtOnce) {
  const auto server = start_registry();
  {
    RawClient client(server->endpoint().port);
    client.send(get("/ec/info/a?wait=60"));
    ASSERT_TRUE(eventually([&] { return server->waiting() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return server->waiting() == 0; }));
}

TEST(RegistryServerTest, ARequestBehindAWaitingOneIsAnsweredBehindIt) {
  const auto server = start_registry();
  RawClient client(server->endpoint().port);
  client.send(get("/ec/info/a?wait=60") + get("/ec/info/b"));
  ASSERT_TRUE(eventually([&] { return server->waiting() == 1; }));
  publish(*server, "a");
  const std::string answers = client.receive_answers(2);
  EXPECT_TRUE(answers.starts_with("HTTP/1.1 200"));
  EXPECT_NE(answers.find("HTTP/1.1 404"), std::string::npos);
}

TEST(RegistryServerTest, ManyWaitersWakeNobodyAndAreAllServed) {
  const size_t count = stagelink::test::kSanitized ? 50 : 300;
  const auto server = start_registry({.tick = 1ms});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<RawClient>(server->endpoint().port));
    clients.back()->send(get("/ec/info/a?wait=60"));
  }
  ASSERT_TRUE(eventually([&] { return server->waiting() == count; }));
  const auto wakes = [&server] {
    const std::string text = server->metrics_text();
    const std::string_view name = "\nstagelink_registry_wakes_total ";
    return std::stoul(text.substr(text.find(name) + name.size()));
  };
  const size_t before = wakes();
  RawClient clock(server->endpoint().port);
  clock.send(get("/ec/info/b?wait=0.3"));
  EXPECT_TRUE(clock.receive_answers(1).starts_with("HTTP/1.1 404"));
  EXPECT_LT(wakes() - before, 30u) << "of some 300 ticks";
  publish(*server, "a");
  for (const auto& client : clients) {
    EXPECT_TRUE(client->receive_answers(1).starts_with("HTTP/1.1 200"));
  }
  EXPECT_EQ(server->waiting(), 0u);
}

TEST(RegistryServerTest, WhatHasEndedIsSweptOutOfARegistryThatNobodyAsks) {
  const auto server = start_registry({.tick = 1ms});
  const PublishedItem item = item_of("a");
  ASSERT_TRUE(server->publish(terms_of(5000, 20ms), std::span(&item, 1)).ok());
  EXPECT_TRUE(eventually([&] { return server->table().usage().entries == 0; }));
  ASSERT_TRUE(server->publish(terms_of(5000, 20ms), std::span(&item, 1)).ok());
  EXPECT_TRUE(eventually([&] { return server->table().usage().entries == 0; }));
}

TEST(RegistryServerTest, CloseEndsThoseWhoWait) {
  auto server = start_registry();
  RawClient client(server->endpoint().port);
  client.send(get("/ec/info/a?wait=60"));
  ASSERT_TRUE(eventually([&] { return server->waiting() == 1; }));
  server->close();
  server->close();
  EXPECT_EQ(client.receive_all(), "");
  publish(*server, "a");  // The table is still there, and nobody is woken.
}

TEST(RegistryServerTest, PublishUnpublishAndRenewOverHttp) {
  const auto server = start_registry();
  const auto client = client_of(*server);
  EXPECT_FALSE(client->instance().has_value());
  const PublishTerms terms = terms_of(5000);
  const std::vector<PublishedItem> items = {item_of("a"), item_of("b"), item_of("\n")};
  EXPECT_FALSE((*client->renew(terms.lease, 30s, soon())).known);
  auto outcome = client->publish(terms, items, soon());
  ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
  EXPECT_TRUE(outcome->fresh);
  EXPECT_TRUE(outcome->items[0].ok() && outcome->items[1].ok());
  EXPECT_EQ(outcome->items[2].code(), Code::kInvalidArgument);
  EXPECT_EQ((*client->renew(terms.lease, 30s, soon())).entries, 2u);
  EXPECT_EQ(client->instance(), server->instance());

  auto found = client->lookup("a", soon());
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->info, items[0].info);
  EXPECT_EQ(*client->unpublish(terms.lease, std::vector<std::string>{"a", "x"}, soon()), 1u);
  EXPECT_EQ(*client->lookup("a", soon()), std::nullopt);
  EXPECT_EQ(*client->unpublish_all(terms.lease, soon()), 1u);
  EXPECT_EQ(*client->lookup("b", soon()), std::nullopt);
}

TEST(RegistryServerTest, WithASecretOnlySignedRequestsAreServed) {
  const stagelink::test::SecretFiles files;
  // Any bytes are a secret: a NUL ends nothing.
  const std::string secret = files.write("right", std::string(16, '\0') + std::string(16, 'r'));
  const std::string wrong = files.write("wrong", std::string(16, '\0') + std::string(16, 'w'));
  const auto server = start_registry({.secret_file = secret});
  const PublishTerms terms = terms_of(5000);
  const PublishedItem item = item_of("a");
  for (const std::string& file : {std::string(), wrong}) {
    const auto stranger = client_of(*server, file);
    EXPECT_EQ(stranger->publish(terms, std::span(&item, 1), soon()).status().reason(),
              Reason::kAuthentication);
    EXPECT_EQ(stranger->lookup("a", soon()).status().reason(), Reason::kAuthentication);
    EXPECT_EQ(stranger->renew(terms.lease, 1s, soon()).status().reason(), Reason::kAuthentication);
  }
  EXPECT_EQ(server->table().usage().leases, 0u);
  const auto client = client_of(*server, secret);
  ASSERT_TRUE(client->publish(terms, std::span(&item, 1), soon()).ok());
  EXPECT_TRUE((*client->lookup("a", soon())).has_value());
  EXPECT_EQ((*client->renew(terms.lease, 30s, soon())).entries, 1u);
  EXPECT_TRUE(answer_to(*server, get("/healthz")).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(answer_to(*server, get("/metrics")).starts_with("HTTP/1.1 200"));
  EXPECT_NE(server->metrics_text().find(
                "stagelink_registry_requests_total{request=\"publish\",status=\"401\"} "),
            std::string::npos);
}

TEST(RegistryServerTest, ListensWhereItIsTold) {
  auto six = RegistryServer::start({.host = "::1", .port = 0});
  if (!six.ok()) GTEST_SKIP() << "no IPv6 here: " << six.status().to_string();
  const auto client = client_of(**six);
  EXPECT_EQ(*client->lookup("a", soon()), std::nullopt);
  const RegistryOptions taken{.host = "::1", .port = (*six)->endpoint().port};
  EXPECT_EQ(RegistryServer::start(taken).status().reason(), Reason::kPortInUse);
  EXPECT_EQ(RegistryServer::start({.port = 65'536}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(RegistryServer::start({.host = "no.such.host.invalid"}).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace stagelink::encoder_cache::test
