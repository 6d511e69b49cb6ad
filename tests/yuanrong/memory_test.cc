// A worker whose memory is full. It keeps the metadata itself, without etcd.
#include <fmt/format.h>

#include "yuanrong/cluster.h"

namespace stagelink::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kValueBytes = 8 << 20;

class YuanrongMemoryTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!servers_missing(false).empty()) return;
    Cluster::Options options;
    options.etcd = false;
    options.memory_mb = 256;
    cluster_ = Cluster::start(options).release();
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }
  void SetUp() override {
    if (const std::string why = servers_missing(false); !why.empty()) GTEST_SKIP() << why;
    ASSERT_NE(cluster_, nullptr);
  }
  static std::unique_ptr<ObjectStore> open(const char* write_mode) {
    StoreOptions options = cluster_->store_options();
    options.yuanrong.write_mode = write_mode;
    options.yuanrong.request_timeout = 2s;
    auto store = ObjectStore::open(options);
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? *std::move(store) : nullptr;
  }
  static double event(const ObjectStore& store, const char* name) {
    return metric(store, "stagelink_yuanrong_events_total", fmt::format("event=\"{}\"", name));
  }

  static Cluster* cluster_;
};

Cluster* YuanrongMemoryTest::cluster_ = nullptr;

TEST_F(YuanrongMemoryTest,
       WithoutEvictionAFullWorkerRefusesWithinTheDeadlineUntilSomethingIsErased) {
  const auto store = open("NONE_L2_CACHE");
  ASSERT_NE(store, nullptr);
  const std::string value = pattern(kValueBytes, 1);
  Status full;
  int fitted = 0;
  Clock::duration taken{};
  for (; fitted < 64 && full.ok(); ++fitted) {
    const auto begin = Clock::now();
    full =
        store->put(fmt::format("full-{}", fitted), std::as_bytes(std::span(value)), {1s}).status();
    taken = Clock::now() - begin;
  }
  EXPECT_EQ(full.code(), Code::kNoSpace) << full.to_string();
  EXPECT_GT(fitted, 10);
  EXPECT_LT(taken, 3s);
  EXPECT_EQ(event(*store, "out_of_memory"), 1);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(store->erase(fmt::format("full-{}", i)).ok());
  EXPECT_TRUE(put_text(*store, "again", value));
  for (int i = 8; i < fitted; ++i) EXPECT_TRUE(store->erase(fmt::format("full-{}", i)).ok());
  EXPECT_TRUE(store->erase("again").ok());
}

TEST_F(YuanrongMemoryTest, AnEvictedPieceOfALargeObjectIsSeen) {
  const auto store = open("NONE_L2_CACHE_EVICT");
  ASSERT_NE(store, nullptr);
  const std::string large = pattern(40 << 20, 2);
  ASSERT_TRUE(put_text(*store, "large", large));
  const std::string value = pattern(kValueBytes, 3);
  Status found;
  for (int i = 0; i < 120 && found.ok(); ++i) {
    ASSERT_TRUE(put_text(*store, fmt::format("many-{}", i), value));
    if (i % 4 == 3) found = store->get("large").status();
  }
  // The manifest may go before or after its chunks: both are seen, the first as a key that nobody
  // put.
  EXPECT_TRUE(found.reason() == Reason::kEvicted || found.code() == Code::kNotFound)
      << found.to_string();
  EXPECT_EQ(event(*store, "evicted") >= 1, found.reason() == Reason::kEvicted);
}

}  // namespace
}  // namespace stagelink::test
