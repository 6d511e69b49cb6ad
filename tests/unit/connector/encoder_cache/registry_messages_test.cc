#include <fmt/format.h>
#include <gtest/gtest.h>

#include "connector/encoder_cache/registry/http/request_reader.h"
#include "connector/encoder_cache/registry/http/request_target.h"
#include "connector/encoder_cache/registry/messages.h"
#include "connector/encoder_cache/registry/signature.h"
#include "integration/support/secret_files.h"
#include "unit/connector/encoder_cache/registry_test.h"

namespace stagelink::encoder_cache::test {
namespace {

using State = RequestReader::State;

// As if it came in pieces of that size.
State feed(RequestReader& reader, std::string_view bytes, size_t piece) {
  State state = State::kMore;
  while (!bytes.empty() && state == State::kMore) {
    const std::span<char> room = reader.prepare();
    const size_t take = std::min({piece, room.size(), bytes.size()});
    std::copy_n(bytes.begin(), take, room.begin());
    bytes.remove_prefix(take);
    state = reader.commit(take);
  }
  return state;
}

TEST(RequestReaderTest, PiecesOfAnySizeGiveTheSameRequest) {
  const std::string request =
      "POST /ec/query?x=1 HTTP/1.1\r\nHost: h\r\nStagelink-Signature: s\r\n"
      "Content-Length: 5\r\n\r\nhello";
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
    RequestReader reader(1024, 1024);
    ASSERT_EQ(feed(reader, request, piece), State::kReady) << piece;
    const HttpRequest got = reader.request();
    EXPECT_EQ(got.method, "POST");
    EXPECT_EQ(got.target, "/ec/query?x=1");
    EXPECT_EQ(got.signature, "s");
    EXPECT_EQ(got.body, "hello");
    EXPECT_TRUE(reader.keep_alive());
    EXPECT_EQ(reader.next(), State::kMore);
    EXPECT_TRUE(reader.idle());
  }
}

TEST(RequestReaderTest, RequestsThatComeTogetherAreReadOneByOne) {
  RequestReader reader(1024, 1024);
  ASSERT_EQ(feed(reader, get("/1") + get("/2") + "GET /3", 1000), State::kReady);
  EXPECT_EQ(reader.request().target, "/1");
  ASSERT_EQ(reader.next(), State::kReady);
  EXPECT_EQ(reader.request().target, "/2");
  ASSERT_EQ(reader.next(), State::kMore);
  EXPECT_FALSE(reader.idle());
  ASSERT_EQ(feed(reader, " HTTP/1.1\r\n\r\n", 3), State::kReady);
  EXPECT_EQ(reader.request().target, "/3");
}

TEST(RequestReaderTest, BothSidesOfTheBounds) {
  const auto head = [](size_t size) {
    std::string text = "GET / HTTP/1.1\r\nX: ";
    return text + std::string(size - text.size() - 4, 'x') + "\r\n\r\n";
  };
  const auto chunked = [](std::string_view body) {
    return "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(body);
  };
  const auto body = [](size_t size) {
    return fmt::format("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}", size,
                       std::string(size, 'b'));
  };
  const std::vector<std::tuple<std::string, State, int>> cases = {
      {head(1000), State::kReady, 0},
      {head(1100), State::kRefused, 431},
      {"GET / HTTP/1.1\r\nX: " + std::string(5000, 'x'), State::kRefused, 431},
      {std::string(5000, 'G'), State::kRefused, 431},
      {body(64), State::kReady, 0},
      {body(65), State::kRefused, 413},
      {chunked("4\r\nabcd\r\n0\r\n\r\n"), State::kReady, 0},
      {chunked("41\r\n" + std::string(65, 'b') + "\r\n0\r\n\r\n"), State::kRefused, 413},
      {chunked("ffffffffffffffffff\r\n"), State::kRefused, 400},
      {chunked("4;" + std::string(5000, 'e')), State::kRefused, 431},
      {"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", State::kRefused, 400},
      {"POST / HTTP/1.1\r\nContent-Length: 1000000000000000\r\n\r\n ", State::kRefused, 413},
      {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", State::kRefused, 400},
      {"GET / HTTP/9.9\r\n\r\n", State::kRefused, 400},
      {"GET  / HTTP/1.1\r\n\r\n", State::kRefused, 400},
      {"GET / HTTP/1.1\r\nNo colon\r\n\r\n", State::kRefused, 400},
      {std::string("GET /\0 HTTP/1.1\r\n\r\n", 19), State::kRefused, 400},
      {"\x80\x04\x95\x1e cposix\nsystem\n(S'touch x'\ntR.", State::kRefused, 400},
      {"\x16\x03\x01\x02\x00\x01 a TLS hello\r\n\r\n", State::kRefused, 400},
  };
  for (const auto& [bytes, state, refusal] : cases) {
    for (const size_t piece : {size_t{1}, size_t{4096}}) {
      RequestReader reader(1024, 64);
      EXPECT_EQ(feed(reader, bytes, piece), state) << bytes.substr(0, 60);
      EXPECT_EQ(reader.refusal(), refusal) << bytes.substr(0, 60);
    }
  }
}

TEST(RequestTargetTest, PercentAndWaitAreRead) {
  const std::string odd = "a b/%?#\xc3\xa9+&";
  auto target = parse_target("/ec/info/" + percent_encode(odd) + "?x=1&wait=2.5&y");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->path, "/ec/info/" + odd);
  EXPECT_EQ(target->wait, Duration(2500ms));
  EXPECT_EQ(parse_target("/a?waits=3")->wait, std::nullopt);
  EXPECT_EQ(parse_target("/%41%6a%6A")->path, "/Ajj");
  for (const char* bad : {"", "a", "http://h/", "/%", "/%4", "/%4g", "/%%41", "/?wait=", "/?wait=x",
                          "/?wait=-1", "/?wait=nan", "/?wait=1e9", "/?wait=1s"}) {
    EXPECT_EQ(parse_target(bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

TEST(RegistryMessagesTest, EveryBodyComesBackAsItWasSaid) {
  const ProducerEntry entry{item_of("a").info, "tcp://h:1", 0};
  EXPECT_EQ(encode_info(entry),
            R"({"nbytes":64,"shape":[4,8],"dtype":"bfloat16","producer_zmq":"tcp://h:1"})");
  EXPECT_EQ(*decode_info(encode_info(entry)), entry);

  const Producers producers = {{}, {entry, {item_of("b").info, "tcp://[::1]:2", 1ULL << 63}}};
  EXPECT_EQ(*decode_producers(encode_producers(producers), 2), producers);
  EXPECT_FALSE(decode_producers(encode_producers(producers), 1).ok());

  auto query = decode_query(encode(QueryRequest{{"a", "\"\\\u00e9"}, 1500ms}));
  ASSERT_TRUE(query.ok());
  EXPECT_EQ(query->mm_hashes, (std::vector<std::string>{"a", "\"\\\u00e9"}));
  EXPECT_EQ(query->wait, Duration(1500ms));

  PublishTerms terms = terms_of(7, 20s);
  terms.item_ttl = 5s;
  const std::vector<PublishedItem> items = {item_of("a"), item_of("b", 2, 9)};
  auto publish = decode_publish(encode_publish(terms, items));
  ASSERT_TRUE(publish.ok()) << publish.status().to_string();
  EXPECT_EQ(publish->items, items);
  EXPECT_EQ(publish->terms.lease, terms.lease);
  EXPECT_EQ(publish->terms.lease_ttl, Duration(20s));
  EXPECT_EQ(publish->terms.item_ttl, Duration(5s));
  EXPECT_EQ(publish->terms.producer_zmq, terms.producer_zmq);

  PublishOutcome outcome{.fresh = true, .items = {Status(), Status(Reason::kLimit, "full")}};
  auto told = decode_outcome(encode(outcome), 2);
  ASSERT_TRUE(told.ok()) << told.status().to_string();
  EXPECT_TRUE(told->fresh);
  EXPECT_TRUE(told->items[0].ok());
  EXPECT_EQ(told->items[1].reason(), Reason::kLimit);
  EXPECT_EQ(told->items[1].message(), "full");

  EXPECT_TRUE(decode_unpublish(encode(UnpublishRequest{terms.lease, true, {}}))->all);
  EXPECT_EQ(decode_unpublish(encode(UnpublishRequest{terms.lease, false, {"a"}}))->mm_hashes.size(),
            1u);
  EXPECT_EQ(decode_renew(encode(RenewRequest{terms.lease, 3s}))->ttl, Duration(3s));
  EXPECT_EQ(*decode_count(encode_count(12)), 12u);
  EXPECT_EQ(decode_detail(encode_detail("no \"such\" thing\n")), "no \"such\" thing?");
  EXPECT_EQ(decode_detail("no json"), "");
}

TEST(RegistryMessagesTest, WhatIsNoMessageIsRefusedByField) {
  const std::string lease = random_instance_id().to_string();
  const auto code = [](const auto& result) { return result.status().reason(); };
  for (const std::string& body :
       {std::string(), std::string("[]"), std::string("{"), std::string("null"),
        std::string("{\"mm_hashes\":[]}"), std::string("{\"mm_hashes\":[1]}"),
        std::string("{\"mm_hashes\":{\"a\":1}}"), std::string("{\"mm_hashes\":[\"\xff\"]}"),
        std::string("{\"mm_hashes\":[\"a\"],\"wait\":\"1\"}"),
        std::string("{\"mm_hashes\":[\"a\"],\"wait\":-1}"), std::string(100'000, '['),
        "{\"x\":" + std::string(100'000, '[')}) {
    EXPECT_EQ(code(decode_query(body)), Reason::kFrame) << body.substr(0, 60);
  }
  const std::string item = R"({"mm_hash":"a","nbytes":64,"shape":[4,8],"dtype":"bfloat16"})";
  const auto publish = [&](std::string_view from, std::string_view to) {
    std::string body = fmt::format(
        R"({{"lease":"{}","ttl":3,"producer_zmq":"tcp://h:1","items":[{}]}})", lease, item);
    if (!from.empty()) body.replace(body.find(from), from.size(), to);
    return code(decode_publish(body));
  };
  EXPECT_EQ(publish("", ""), Reason::kOk);
  const std::vector<std::pair<const char*, const char*>> wrong = {{"\"ttl\":3", "\"ttl\":0"},
                                                                  {"\"ttl\":3", "\"ttl\":1e300"},
                                                                  {"\"lease\"", "\"x\""},
                                                                  {"\"mm_hash\"", "\"x\""},
                                                                  {"64", "-64"},
                                                                  {"64", "64.5"},
                                                                  {"64", "99999999999999999999"},
                                                                  {"[4,8]", "\"4,8\""},
                                                                  {"[4,8]", "[4,-8]"},
                                                                  {"[4,8]", "[1,1,1,1,1,1,1,1,1]"},
                                                                  {"\"bfloat16\"", "16"},
                                                                  {"[{", "[7,{"}};
  for (const auto& [from, to] : wrong) EXPECT_EQ(publish(from, to), Reason::kFrame) << to;

  std::vector<std::string> many(kMaxBatchHashes, "a");
  EXPECT_TRUE(decode_query(encode(QueryRequest{many, {}})).ok());
  many.emplace_back("a");
  EXPECT_EQ(code(decode_query(encode(QueryRequest{many, {}}))), Reason::kFrame);

  // What a consumer would allocate and connect to is checked, whoever says it.
  for (const char* body :
       {R"({"nbytes":64,"shape":[-8,-4],"dtype":"bfloat16","producer_zmq":"tcp://h:1"})",
        R"({"nbytes":66,"shape":[8,4],"dtype":"bfloat16","producer_zmq":"tcp://h:1"})",
        R"({"nbytes":64,"shape":[8,4],"dtype":"object","producer_zmq":"tcp://h:1"})",
        R"({"nbytes":64,"shape":[8,4],"dtype":"bfloat16","producer_zmq":"ipc:///etc/x"})"}) {
    EXPECT_EQ(code(decode_info(body)), Reason::kFrame) << body;
  }
}

TEST(SignatureTest, OnlyTheRequestThatWasSignedPassesOnceAndInTime) {
  const stagelink::test::SecretFiles files;
  const auto key = *SigningKey::from_file(files.write("a", std::string(32, 'k')));
  const auto other = *SigningKey::from_file(files.write("b", std::string(32, 'o')));
  const InstanceId registry = random_instance_id();
  const InstanceId nonce = random_instance_id();
  const SignedParts parts{"POST", "/ec/publish", "body"};
  const int64_t now = 1'800'000'000'000;
  const int64_t window = SignatureCheck::kWindowMs;
  SignatureCheck check(key, registry);
  const auto reason = [&](const std::string& header, bool once = false) {
    return check.check(header, parts, once, now).reason();
  };
  EXPECT_EQ(reason(key->sign_at(registry, parts, now, nonce)), Reason::kOk);
  EXPECT_EQ(reason(key->sign_at(registry, parts, now - window, nonce)), Reason::kOk);
  EXPECT_EQ(reason(key->sign_at(registry, parts, now + window, nonce)), Reason::kOk);
  EXPECT_EQ(reason(key->sign_at(registry, parts, now - window - 1, nonce)),
            Reason::kAuthentication);
  EXPECT_EQ(reason(key->sign_at(registry, parts, now + window + 1, nonce)),
            Reason::kAuthentication);
  EXPECT_EQ(reason(other->sign_at(registry, parts, now, nonce)), Reason::kAuthentication);
  EXPECT_EQ(reason(key->sign_at(random_instance_id(), parts, now, nonce)), Reason::kAuthentication);
  for (const SignedParts& changed :
       {SignedParts{"GET", "/ec/publish", "body"}, SignedParts{"POST", "/ec/renew", "body"},
        SignedParts{"POST", "/ec/publish", "bodY"}}) {
    EXPECT_EQ(reason(key->sign_at(registry, changed, now, nonce)), Reason::kAuthentication);
  }
  const std::string good = key->sign_at(registry, parts, now, nonce);
  EXPECT_EQ(reason(good, true), Reason::kOk);
  EXPECT_EQ(reason(good, true), Reason::kAuthentication) << "a second time";
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(reason(good.substr(0, size)), Reason::kAuthentication);
  }
  EXPECT_EQ(reason(good + "0"), Reason::kAuthentication);
  std::string moved = good;
  moved[2] = '-';
  EXPECT_EQ(reason(moved), Reason::kAuthentication);
}

TEST(SignatureTest, NoncesAreForgottenAfterTheirTimeAndNeverMoreThanTheirBound) {
  const stagelink::test::SecretFiles files;
  const auto key = *SigningKey::from_file(files.write("a", std::string(32, 'k')));
  const InstanceId registry = random_instance_id();
  const SignedParts parts{"POST", "/", ""};
  constexpr size_t kNonces = 100;
  SignatureCheck check(key, registry, kNonces);
  int64_t now = 1'800'000'000'000;
  const auto ask = [&] {
    return check.check(key->sign_at(registry, parts, now, random_instance_id()), parts, true, now)
        .code();
  };
  for (size_t i = 0; i < kNonces; ++i) ASSERT_EQ(ask(), Code::kOk);
  EXPECT_EQ(ask(), Code::kBusy);
  now += 2 * SignatureCheck::kWindowMs;
  EXPECT_EQ(ask(), Code::kBusy);
  now += 1;
  EXPECT_EQ(ask(), Code::kOk);
}

}  // namespace
}  // namespace stagelink::encoder_cache::test
