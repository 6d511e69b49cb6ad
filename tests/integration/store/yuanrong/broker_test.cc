// The way from a store to its broker and back, with a datasystem that obeys the test.
#include <atomic>
#include <cstring>
#include <thread>

#include <signal.h>
#include <sys/wait.h>

#include "integration/store/yuanrong/fake_worker.h"
#include "integration/support/child_process.h"
#include "integration/support/eventually.h"
#include "store/yuanrong/store_key.h"

namespace stagelink::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const Result<ObjectView>& view) {
  if (!view.ok()) return view.status().to_string();
  const auto bytes = (*view).bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

class YuanrongBrokerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = worker_.open();
    ASSERT_NE(store_, nullptr);
  }
  Status put(const std::string& key, const std::string& value) {
    return store_->put(key, bytes_of(value)).status();
  }

  void kill_broker() {
    const pid_t broker = broker_pid(*store_);
    ASSERT_GT(broker, 1);  // 0 and -1 would be others.
    ::kill(broker, SIGKILL);
  }

  FakeWorker worker_;
  std::unique_ptr<ObjectStore> store_;
};

TEST_F(YuanrongBrokerTest, ObjectsOfEverySizeComeBackAndLargeOnesWithoutACopy) {
  for (const size_t size : {0UL, 1UL, 524'160UL, 524'161UL, 1UL << 20, 20UL << 20}) {
    const std::string value(size, 'v');
    ASSERT_TRUE(put("key", value).ok());
    EXPECT_EQ(text_of(store_->get("key")), value) << size;
  }
  EXPECT_EQ(sample(*store_, "part=\"shared_memory\""), 1);
  EXPECT_TRUE(store_->erase("key").ok());
  EXPECT_EQ(store_->get("key").status().code(), Code::kNotFound);
  EXPECT_TRUE(eventually([&] { return sample(*store_, "held_objects{") == 0; }));
}

TEST_F(YuanrongBrokerTest, AGetThatIsAnsweredTooEarlyWaitsForItsDeadline) {
  const auto begin = Clock::now();
  const Status status = store_->get("nobody", 300ms).status();
  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_GE(Clock::now() - begin, 300ms);
}

TEST_F(YuanrongBrokerTest, AWaitingGetSeesThePutOfAnotherStore) {
  const auto other = worker_.open();
  Result<ObjectView> got = Status(Reason::kNotFound, "");
  std::thread waiter([&] { got = other->get("later", 60s); });
  ASSERT_TRUE(put("later", "came").ok());
  waiter.join();
  EXPECT_EQ(text_of(got), "came");
}

TEST_F(YuanrongBrokerTest, ARuntimeErrorOfAGetIsAMiss) {
  worker_.tell("runtime");
  EXPECT_EQ(store_->get("nobody").status().code(), Code::kNotFound);
}

TEST_F(YuanrongBrokerTest, AMissingPieceOfALargeObjectIsEvictedAndCounted) {
  ASSERT_TRUE(put("large", std::string(20 << 20, 'l')).ok());
  auto view = store_->get("large");
  ASSERT_TRUE(view.ok());
  const uint64_t generation = view->generation();
  worker_.tell("drop", store::yuanrong::chunk_key("large", generation, 1));
  EXPECT_EQ(store_->get("large").status().reason(), Reason::kEvicted);
  EXPECT_EQ(event_count(*store_, "evicted"), 1);
}

TEST_F(YuanrongBrokerTest, BytesThatAreNotWhatWasPutAreCorruptAndCounted) {
  ASSERT_TRUE(put("flipped", "value").ok());
  worker_.tell("flip");
  EXPECT_EQ(store_->get("flipped").status().code(), Code::kCorrupt);
  EXPECT_EQ(event_count(*store_, "corrupt"), 1);
}

// T17: what is wrong with one of many keys is said of that one.
TEST_F(YuanrongBrokerTest, OfManyKeysEachHasItsOwnAnswer) {
  std::vector<std::string> keys;
  for (int i = 0; i < 8; ++i) {
    keys.push_back(fmt::format("k{}", i));
    if (i == 2) continue;
    ASSERT_TRUE(put(keys.back(), fmt::format("value {}", i)).ok());
  }
  worker_.tell("flip", store::yuanrong::store_key("k5"));
  std::vector<Result<ObjectView>> views = store_->get_many(keys);
  ASSERT_EQ(views.size(), 8U);
  for (size_t i = 0; i < 8; ++i) {
    if (i == 2 || i == 5) {
      EXPECT_EQ(views[i].status().code(), i == 2 ? Code::kNotFound : Code::kCorrupt) << i;
    } else {
      EXPECT_EQ(text_of(views[i]), fmt::format("value {}", i));
    }
  }
  EXPECT_EQ(event_count(*store_, "corrupt"), 1);
}

TEST_F(YuanrongBrokerTest, WhereMemoryCannotBeHandedOverValuesAreCopied) {
  worker_.tell("heap");
  const auto other = worker_.open();
  EXPECT_EQ(sample(*other, "part=\"shared_memory\""), 0);
  const std::string value(3 << 20, 'c');
  ASSERT_TRUE(other->put("copied", bytes_of(value)).ok());
  EXPECT_EQ(text_of(other->get("copied")), value);
}

TEST_F(YuanrongBrokerTest, WithoutAnExclusiveConnectionProcessesShareOne) {
  EXPECT_EQ(sample(*store_, "part=\"exclusive_connection\""), 1);
  ASSERT_TRUE(put("key", "value").ok());
  worker_.tell("crowded");
  const auto late = worker_.open();  // Others have taken the last.
  EXPECT_EQ(sample(*late, "part=\"exclusive_connection\""), 0);
  EXPECT_EQ(text_of(late->get("key")), "value");
  EXPECT_EQ(text_of(store_->get("key")), "value");  // Has lost its own.
  EXPECT_EQ(sample(*store_, "part=\"exclusive_connection\""), 0);
  EXPECT_TRUE(store_->health().ok());
}

TEST_F(YuanrongBrokerTest, AFullWorkerIsNoSpaceAndCounted) {
  worker_.tell("full");
  EXPECT_EQ(store_->create("big", 1 << 20).status().code(), Code::kNoSpace);
  EXPECT_EQ(put("small", "value").code(), Code::kNoSpace);
  EXPECT_EQ(event_count(*store_, "out_of_memory"), 2);
}

TEST_F(YuanrongBrokerTest, ACallThatTheLibraryDoesNotAnswerEndsAtItsDeadline) {
  worker_.tell("stall");
  EXPECT_EQ(store_->get("nobody", 100ms).status().code(), Code::kTimedOut);
  EXPECT_EQ(store_->create("big", 1 << 20, {100ms}).status().code(), Code::kNoSpace);
  worker_.untell("stall");
  ASSERT_TRUE(put("after", "value").ok());
  EXPECT_EQ(text_of(store_->get("after")), "value");
  // What came too late was given back.
  EXPECT_EQ(sample(*store_, "held_objects{"), 0);
}

TEST_F(YuanrongBrokerTest, AWorkerThatDiesFailsWhatWaitsAtOnce) {
  Status waiting;
  std::thread waiter([&] { waiting = store_->get("nobody", 60s).status(); });
  EXPECT_TRUE(eventually(
      [&] { return worker_.somebody_waits() && sample(*store_, "part=\"worker\"") == 1; }));
  worker_.die();
  waiter.join();
  EXPECT_EQ(waiting.reason(), Reason::kUnreachable) << waiting.to_string();
  EXPECT_EQ(put("key", "value").code(), Code::kUnreachable);
  EXPECT_EQ(store_->health().code(), Code::kUnreachable);
  EXPECT_EQ(sample(*store_, "losses_total{store=\"default\",backend=\"yuanrong\",part=\"worker\""),
            1);
  EXPECT_GE(event_count(*store_, "worker_down"), 1);
}

TEST_F(YuanrongBrokerTest, AWorkerThatIsNotReadyFailsOperationsUntilItIs) {
  worker_.tell("unhealthy");
  ASSERT_TRUE(eventually([&] { return !store_->health().ok(); }));
  EXPECT_EQ(store_->get("key").status().code(), Code::kUnreachable);
  worker_.untell("unhealthy");
  ASSERT_TRUE(eventually([&] { return store_->health().ok(); }));
  EXPECT_TRUE(put("key", "value").ok());
}

TEST_F(YuanrongBrokerTest, ADeadBrokerEndsWhatWaitsAndSpoilsViewsAndIsStartedAgain) {
  ASSERT_TRUE(put("kept", std::string(1 << 20, 'k')).ok());
  const auto view = store_->get("kept");
  ASSERT_TRUE(view.ok());
  const ObjectView& kept = *view;
  EXPECT_TRUE(kept.valid().ok());
  Status waiting;
  std::thread waiter([&] { waiting = store_->get("nobody", 60s).status(); });
  EXPECT_TRUE(eventually([&] { return worker_.somebody_waits(); }));
  kill_broker();
  waiter.join();
  EXPECT_EQ(waiting.code(), Code::kPeerLost) << waiting.to_string();
  EXPECT_EQ(kept.valid().code(), Code::kPeerLost);
  // The next call has a new broker; the datasystem of this test went with the old one.
  EXPECT_EQ(store_->get("kept").status().code(), Code::kNotFound);
  EXPECT_TRUE(put("kept", "again").ok());
  EXPECT_EQ(event_count(*store_, "broker_lost"), 1);
  EXPECT_EQ(event_count(*store_, "views_lost"), 1);
}

TEST_F(YuanrongBrokerTest, ABrokerThatDoesNotStayIsNotStartedForEver) {
  Status last;
  int starts = 1;
  for (; starts < 10 && last.ok(); ++starts) {
    kill_broker();
    ASSERT_TRUE(eventually([&] { return !store_->health().ok(); }));
    last = put("key", "value");
  }
  EXPECT_EQ(last.code(), Code::kUnreachable) << last.to_string();
  EXPECT_EQ(starts, 6);
}

int hold_memory(Channel& parent) {
  const auto folder_and_port = parent.receive_text();
  if (!folder_and_port) return 1;
  const size_t space = folder_and_port->find(' ');
  StoreOptions options;
  options.backend = StoreBackend::kYuanrong;
  options.yuanrong.tenant_id = folder_and_port->substr(0, space);
  options.yuanrong.port = static_cast<uint16_t>(std::stoi(folder_and_port->substr(space + 1)));
  options.yuanrong.connect_timeout = 20s;
  ::setenv("STAGELINK_YUANRONG_PLUGIN", STAGELINK_FAKE_DATASYSTEM, 1);
  auto store = ObjectStore::open(options);
  if (!store.ok()) return 2;
  auto writer = (*store)->create("held", 60 << 20);
  parent.send(writer.ok() ? fmt::format("{}", broker_pid(**store)) : writer.status().to_string());
  (void)parent.receive_text(60s);
  return 0;
}

const RoleRegistration kHoldRole("yuanrong-hold-memory", &hold_memory);

TEST_F(YuanrongBrokerTest, ProcessesShareABrokerThatGivesBackWhatADeadOneHeld) {
  ChildProcess child("yuanrong-hold-memory");
  const StoreOptions options = worker_.options();
  child.channel().send(fmt::format("{} {}", options.yuanrong.tenant_id, options.yuanrong.port));
  EXPECT_EQ(child.channel().receive_text(), fmt::format("{}", broker_pid(*store_)));
  EXPECT_EQ(store_->create("mine", 60 << 20, {1s}).status().code(), Code::kNoSpace);
  child.kill_hard();
  EXPECT_TRUE(eventually([&] { return store_->create("mine", 60 << 20, {1s}).ok(); }));
}

TEST_F(YuanrongBrokerTest, TheBrokerEndsWithItsLastClient) {
  const pid_t broker = broker_pid(*store_);
  ASSERT_GT(broker, 1);
  ASSERT_EQ(::kill(broker, 0), 0);
  store_ = nullptr;
  EXPECT_TRUE(eventually([&] { return ended(broker); }));
}

TEST_F(YuanrongBrokerTest, ClosingEndsWhatWaitsAndKeepsViews) {
  ASSERT_TRUE(put("kept", std::string(1 << 20, 'k')).ok());
  const auto view = store_->get("kept");
  Status waiting;
  std::thread waiter([&] { waiting = store_->get("nobody", 60s).status(); });
  EXPECT_TRUE(eventually([&] { return worker_.somebody_waits(); }));
  EXPECT_TRUE(store_->close().ok());
  waiter.join();
  EXPECT_EQ(waiting.reason(), Reason::kClosed);
  EXPECT_EQ(put("key", "value").reason(), Reason::kClosed);
  EXPECT_EQ(text_of(view), std::string(1 << 20, 'k'));
  EXPECT_TRUE((*view).valid().ok());
}

TEST_F(YuanrongBrokerTest, AForkedChildTouchesNothingOfItsParents) {
  ASSERT_TRUE(put("kept", std::string(1 << 20, 'k')).ok());
  auto view = std::make_unique<Result<ObjectView>>(store_->get("kept"));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool forked = store_->get("kept").status().reason() == Reason::kForked;
    view = nullptr;
    store_ = nullptr;
    ::_exit(forked ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(text_of(*view), std::string(1 << 20, 'k'));
  EXPECT_EQ(sample(*store_, "held_objects{"), 1);
}

TEST_F(YuanrongBrokerTest, ManyThreadsWaitAndOthersStillGetThrough) {
  std::vector<std::thread> waiters;
  std::atomic<int> found{0};
  for (int i = 0; i < 70; ++i) {  // More than there are lanes.
    waiters.emplace_back([&] { found += store_->get("for all", 60s).ok(); });
  }
  ASSERT_TRUE(put("beside", "value").ok());
  EXPECT_EQ(text_of(store_->get("beside")), "value");
  ASSERT_TRUE(put("for all", "came").ok());
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(found, 70);
}

TEST(YuanrongOpenTest, AMissingPackageNamesTheCommandThatInstallsIt) {
  ::unsetenv("STAGELINK_YUANRONG_PLUGIN");
  StoreOptions options;
  options.backend = StoreBackend::kYuanrong;
  options.yuanrong.sdk_path = "/nonexistent";
  const Status status = ObjectStore::open(options).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find("pip install openyuanrong-datasystem"), std::string_view::npos);
}

TEST(YuanrongOpenTest, NobodyAtTheWorkersPortIsUnreachableLongBeforeTheTimeout) {
  FakeWorker worker;
  worker.die();
  const auto begin = Clock::now();
  const Status status = ObjectStore::open(worker.options()).status();
  EXPECT_EQ(status.code(), Code::kUnreachable) << status.to_string();
  EXPECT_LT(Clock::now() - begin, 10s);
}

}  // namespace
}  // namespace stagelink::test
