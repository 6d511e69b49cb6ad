#include "connector/moriio/messages/request_id.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stagelink::moriio {
namespace {

constexpr std::string_view kUnique = "0123456789abcdef0123456789abcdef";

RequestAddresses sample() {
  return {.prefill = {.host = "10.0.0.1", .handshake_port = 6301, .notify_port = 61005},
          .decode = {.host = "fe80::1", .handshake_port = 6401, .notify_port = 61105}};
}

bool names(const Status& status, std::string_view field) {
  return status.message().find(field) != std::string_view::npos;
}

TEST(RequestIdTest, HoldsTheAddressesOfBothSides) {
  const auto id = format_request_id(sample(), kUnique);
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  EXPECT_EQ(*id,
            "___prefill_addr_host:10.0.0.1,handshake:6301,notify:61005"
            "___decode_addr_host:fe80::1,handshake:6401,notify:61105_"
            "0123456789abcdef0123456789abcdef");
  EXPECT_EQ(*parse_request_id(*id), sample());
}

TEST(RequestIdTest, MayBeWrappedByTheServer) {
  const std::string id = "cmpl-" + *format_request_id(sample(), kUnique) + "-0-9f8e7d6c";
  ASSERT_TRUE(parse_request_id(id).ok()) << parse_request_id(id).status().to_string();
  EXPECT_EQ(*parse_request_id(id), sample());
}

TEST(RequestIdTest, AnIdWithoutAddressesIsNotFound) {
  const std::string good = *format_request_id(sample(), kUnique);
  for (const std::string& id :
       {std::string(), std::string("cmpl-1"), good.substr(0, good.size() - 1), good + "0",
        good.substr(3), std::string("___decode_addr_x___prefill_addr_y_") + std::string(kUnique)}) {
    EXPECT_EQ(parse_request_id(id).status().reason(), Reason::kNotFound) << id;
  }
}

TEST(RequestIdTest, HasABound) {
  const std::string good = *format_request_id(sample(), kUnique);
  EXPECT_TRUE(parse_request_id(std::string(1024 - good.size(), 'x') + good).ok());
  EXPECT_EQ(parse_request_id(std::string(1025 - good.size(), 'x') + good).status().reason(),
            Reason::kTooLarge);
}

TEST(RequestIdTest, NeedsThirtyTwoLowerCaseHexDigits) {
  EXPECT_FALSE(format_request_id(sample(), kUnique.substr(1)).ok());
  EXPECT_FALSE(format_request_id(sample(), "0123456789ABCDEF0123456789ABCDEF").ok());
}

TEST(ZmqAddressTest, RoundTrips) {
  for (const ZmqAddress& address : {sample().prefill, sample().decode}) {
    EXPECT_EQ(*parse_zmq_address(to_text(address)), address);
  }
}

TEST(ZmqAddressTest, KeysComeInAnyOrderAndOthersAreIgnored) {
  EXPECT_EQ(*parse_zmq_address("notify:61005,rank:3, host: 10.0.0.1 ,handshake :6301"),
            sample().prefill);
}

TEST(ZmqAddressTest, AWrongKeyIsNamed) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {"", "`host` is missing"},
      {"handshake:1,notify:2", "`host` is missing"},
      {"host:h,notify:2", "`handshake` is missing"},
      {"host:h,handshake:1", "`notify` is missing"},
      {"host:h,handshake:0,notify:2", "`handshake` is `0`"},
      {"host:h,handshake:65536,notify:2", "`handshake` is `65536`"},
      {"host:h,handshake:1,notify:-1", "`notify` is `-1`"},
      {"host:h,handshake:1,notify:abc", "`notify` is `abc`"},
      {"host:,handshake:1,notify:2", "`host` is no address"},
      {"host:a b,handshake:1,notify:2", "`host` is no address"},
      {"host:h,host:h,handshake:1,notify:2", "`host` is given twice"},
      {"host:h,handshake,notify:2", "`handshake` is no key:value"},
  };
  for (const auto& [text, why] : cases) {
    EXPECT_TRUE(names(parse_zmq_address(text).status(), why))
        << text << ": " << parse_zmq_address(text).status().to_string();
  }
  EXPECT_TRUE(parse_zmq_address("host:h,handshake:1,notify:65535").ok());
}

TEST(ZmqAddressTest, AnEndpointPutsIpv6InBrackets) {
  EXPECT_EQ(zmq_endpoint("10.0.0.1", 80), "tcp://10.0.0.1:80");
  EXPECT_EQ(zmq_endpoint("::1", 80), "tcp://[::1]:80");
  EXPECT_EQ(zmq_endpoint("[::1]", 80), "tcp://[::1]:80");
}

}  // namespace
}  // namespace stagelink::moriio
