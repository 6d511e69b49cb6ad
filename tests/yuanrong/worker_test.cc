// The store over a real worker with etcd, from start to the worker's death and return.
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "integration/support/child_process.h"
#include "integration/support/eventually.h"
#include "yuanrong/cluster.h"

namespace stagelink::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Of all threads, user and system.
double cpu_seconds(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string word;
  for (int i = 0; i < 11; ++i) fields >> word;
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

class YuanrongWorkerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (servers_missing(true).empty()) cluster_ = Cluster::start({}).release();
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }
  void SetUp() override {
    if (const std::string why = servers_missing(true); !why.empty()) GTEST_SKIP() << why;
    ASSERT_NE(cluster_, nullptr);
    store_ = cluster_->open();
    ASSERT_NE(store_, nullptr);
  }
  double event(const char* name) const {
    return metric(*store_, "stagelink_yuanrong_events_total", fmt::format("event=\"{}\"", name));
  }
  double losses(const char* part) const {
    return metric(*store_, "stagelink_yuanrong_losses_total", fmt::format("part=\"{}\"", part));
  }
  std::string open_line() const {
    return fmt::format("open {} {} {}", cluster_->options().host, cluster_->options().port,
                       cluster_->store_options().yuanrong.etcd_address);
  }
  static std::string ask(ChildProcess& child, const std::string& line) {
    EXPECT_TRUE(child.channel().send(line));
    return child.channel().receive_text().value_or("gone");
  }

  static Cluster* cluster_;
  std::unique_ptr<ObjectStore> store_;
};

Cluster* YuanrongWorkerTest::cluster_ = nullptr;

TEST_F(YuanrongWorkerTest, ObjectsOfEverySizeArriveInAnotherProcess) {
  ChildProcess user("yuanrong-user");
  ASSERT_EQ(ask(user, open_line()), "ok");
  // Around what travels with the request, what lies in one object, and beyond.
  for (const size_t bytes :
       {0UL, 1UL, 524'159UL, 524'160UL, 524'161UL, 1UL << 20, (16UL << 20) - 129,
        (16UL << 20) - 128, (16UL << 20) - 127, 40UL << 20}) {
    const std::string key = fmt::format("stage/0->1:{}", bytes);
    ASSERT_TRUE(put_text(*store_, key, pattern(bytes, 7)));
    EXPECT_EQ(ask(user, fmt::format("get {} 0 {} 7", key, bytes)), "ok") << bytes;
    EXPECT_TRUE(store_->erase(key).ok());
    EXPECT_EQ(ask(user, fmt::format("get {} 0 {} 7", key, bytes)), "not_found") << bytes;
  }
  EXPECT_EQ(metric(*store_, "stagelink_yuanrong_up", "part=\"shared_memory\""), 1);
  EXPECT_EQ(metric(*store_, "stagelink_yuanrong_up", "part=\"exclusive_connection\""), 1);
}

TEST_F(YuanrongWorkerTest, KeysOfAnyBytesAndLengthAreKeptApart) {
  const std::vector<std::string> keys = {"!",
                                         "%21",
                                         "a b",
                                         "a%20b",
                                         "\xff/\x01",
                                         std::string(200, 'k'),
                                         std::string(201, 'k'),
                                         std::string(1024, '~'),
                                         std::string(1023, '~') + "!"};
  for (const std::string& key : keys) ASSERT_TRUE(put_text(*store_, key, "value of " + key));
  std::vector<Result<ObjectView>> views = store_->get_many(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_TRUE(views[i].ok()) << views[i].status().to_string();
    const std::span<const std::byte> bytes = views[i]->bytes();
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
              "value of " + keys[i]);
  }
}

TEST_F(YuanrongWorkerTest, AViewKeepsItsBytesWhenTheObjectIsReplacedOrErased) {
  ASSERT_TRUE(put_text(*store_, "replaced", pattern(1 << 20, 1)));
  auto old = store_->get("replaced");
  ASSERT_TRUE(old.ok());
  ASSERT_TRUE(put_text(*store_, "replaced", pattern(1 << 20, 2)));
  auto now = store_->get("replaced");
  ASSERT_TRUE(now.ok());
  EXPECT_GT(now->generation(), old->generation());
  EXPECT_TRUE(store_->erase("replaced", old->generation()).ok());  // Of another generation.
  EXPECT_TRUE(*store_->exists("replaced"));
  EXPECT_TRUE(store_->erase("replaced", now->generation()).ok());
  EXPECT_FALSE(*store_->exists("replaced"));
  const std::string first = pattern(1 << 20, 1);
  EXPECT_EQ(0, std::memcmp(old->bytes().data(), first.data(), first.size()));
  EXPECT_TRUE(old->valid().ok());
}

TEST_F(YuanrongWorkerTest, AnObjectGoesWhenItsTimeHasPassed) {
  const std::string value = "short";
  ASSERT_TRUE(store_->put("short", std::as_bytes(std::span(value)), {5s, 1s}).ok());
  ASSERT_TRUE(put_text(*store_, "long", "long"));
  EXPECT_TRUE(store_->expire("long", 1s).ok());
  EXPECT_EQ(store_->expire("nobody", 1s).code(), Code::kNotFound);
  EXPECT_TRUE(eventually([&] {
    return store_->get("short").status().code() == Code::kNotFound &&
           store_->get("long").status().code() == Code::kNotFound;
  }));
}

TEST_F(YuanrongWorkerTest, AWaitingGetEndsWithThePutOrAtItsDeadlineAndNotBefore) {
  ChildProcess user("yuanrong-user");
  ASSERT_EQ(ask(user, open_line()), "ok");
  ASSERT_TRUE(user.channel().send("get awaited 20000 1000 3"));
  const auto begin = Clock::now();
  EXPECT_EQ(store_->get("nobody", 700ms).status().code(), Code::kTimedOut);
  EXPECT_GE(Clock::now() - begin, 700ms);
  ASSERT_TRUE(put_text(*store_, "awaited", pattern(1000, 3)));
  EXPECT_EQ(user.channel().receive_text(), "ok");
}

TEST_F(YuanrongWorkerTest, ADeadWorkerFailsWhatWaitsAtOnceAndItsSuccessorIsUsed) {
  ASSERT_TRUE(put_text(*store_, "kept", pattern(1 << 20, 5)));
  auto view = store_->get("kept");
  ASSERT_TRUE(view.ok());
  Clock::time_point killed;
  Status waiting;
  std::thread waiter([&] { waiting = store_->get("nobody", 60s).status(); });
  ASSERT_TRUE(
      eventually([&] { return metric(*store_, "stagelink_yuanrong_up", "part=\"worker\"") == 1; }));
  killed = Clock::now();
  cluster_->kill("worker");
  waiter.join();
  // The time of one request is 5 s: that would be how a caller notices by itself.
  EXPECT_LT(Clock::now() - killed, 4s);
  EXPECT_EQ(waiting.reason(), Reason::kUnreachable) << waiting.to_string();
  const auto begin = Clock::now();
  EXPECT_EQ(store_->get("kept").status().code(), Code::kUnreachable);
  EXPECT_FALSE(store_->create("new", 1 << 20).ok());
  EXPECT_EQ(store_->health().code(), Code::kUnreachable);
  EXPECT_LT(Clock::now() - begin, 4s);
  EXPECT_GE(event("worker_down"), 2);
  EXPECT_EQ(losses("worker"), 1);
  const std::string bytes = pattern(1 << 20, 5);
  EXPECT_EQ(0, std::memcmp(view->bytes().data(), bytes.data(), bytes.size()));  // Still mapped.
  cluster_->restart_worker();
  ASSERT_TRUE(eventually([&] { return store_->health().ok(); }, 60s));
  EXPECT_EQ(store_->get("kept").status().code(), Code::kNotFound);
  ASSERT_TRUE(put_text(*store_, "kept", bytes));
  EXPECT_TRUE(store_->get("kept").ok());
}

// The last two: a worker cannot start again without etcd.
TEST_F(YuanrongWorkerTest, WithoutEtcdTheStoreGoesOnAndCountsIt) {
  ASSERT_TRUE(put_text(*store_, "before", "1"));
  cluster_->kill("etcd");
  EXPECT_TRUE(eventually([&] { return losses("etcd") == 1; }, 60s)) << store_->metrics_text();
  EXPECT_EQ(metric(*store_, "stagelink_yuanrong_up", "part=\"etcd\""), 0);
  ASSERT_TRUE(put_text(*store_, "after", "2"));
  EXPECT_TRUE(store_->get("before").ok());
  EXPECT_TRUE(store_->get("after").ok());
  EXPECT_TRUE(store_->health().ok());
}

TEST_F(YuanrongWorkerTest, TheBrokerOfAWorkerThatHasGoneRestsAndEndsWithItsClient) {
  ASSERT_TRUE(put_text(*store_, "kept", pattern(1 << 20, 5)));
  auto view = store_->get("kept");
  ASSERT_TRUE(view.ok());
  const auto broker =
      static_cast<pid_t>(metric(*store_, "stagelink_yuanrong_broker_pid", "store="));
  ASSERT_GT(broker, 1);
  cluster_->kill("worker");
  ASSERT_TRUE(eventually([&] { return losses("worker") == 1; }));
  // By itself the library would use the whole of one processor.
  const double before = cpu_seconds(broker);
  std::this_thread::sleep_for(3s);
  EXPECT_LT(cpu_seconds(broker) - before, 0.9);
  store_ = nullptr;
  EXPECT_FALSE(eventually([&] { return ::kill(broker, 0) != 0; }, 100ms));  // The view holds it.
  view = Status(Reason::kNotFound, "");
  EXPECT_TRUE(eventually([&] { return ::kill(broker, 0) != 0; }, 20s));
}

}  // namespace
}  // namespace stagelink::test
