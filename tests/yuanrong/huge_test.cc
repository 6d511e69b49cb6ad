// More than fits into 31 bits, in pieces under a manifest, from one process to another.
#include <cstdlib>

#include <fmt/format.h>

#include "integration/support/child_process.h"
#include "yuanrong/cluster.h"

namespace stagelink::test {
namespace {

using namespace std::chrono_literals;

TEST(YuanrongHugeTest, AnObjectBeyondTwoGiBArrivesInAnotherProcessToItsTail) {
  if (const std::string why = servers_missing(false); !why.empty()) GTEST_SKIP() << why;
  if (std::getenv("STAGELINK_HUGE_OBJECT") == nullptr) {
    GTEST_SKIP() << "takes 9 GiB of memory: set STAGELINK_HUGE_OBJECT";
  }
  Cluster::Options options;
  options.etcd = false;
  options.memory_mb = 4096;
  const auto cluster = Cluster::start(options);
  ASSERT_NE(cluster, nullptr);
  const auto store = cluster->open();
  ASSERT_NE(store, nullptr);
  constexpr size_t kBytes = (size_t{2} << 30) + 12'345;
  {
    const std::string value = pattern(kBytes, 11);
    const auto put = store->put("huge", std::as_bytes(std::span(value)), {60s});
    ASSERT_TRUE(put.ok()) << put.status().to_string();
  }
  ChildProcess user("yuanrong-user");
  ASSERT_TRUE(user.channel().send(
      fmt::format("open {} {} -", cluster->options().host, cluster->options().port)));
  ASSERT_EQ(user.channel().receive_text(), "ok");
  ASSERT_TRUE(user.channel().send(fmt::format("get huge 0 {} 11", kBytes)));
  EXPECT_EQ(user.channel().receive_text(60s), "ok");
  EXPECT_TRUE(store->erase("huge").ok());
  EXPECT_EQ(store->get("huge").status().code(), Code::kNotFound);
  // All pieces went with it: there is room for the same again.
  auto writer = store->create("again", kBytes, {20s});
  EXPECT_TRUE(writer.ok()) << writer.status().to_string();
}

}  // namespace
}  // namespace stagelink::test
