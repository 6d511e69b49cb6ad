// What the embedded store promises, between two processes where something crosses processes.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <thread>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "integration/store/store_test.h"
#include "integration/support/eventually.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class ShmStoreTest : public StoreTest {
 protected:
  std::string file_name() const {
    return "stagelink-" + std::to_string(::geteuid()) + ".test.arena";
  }
};

TEST_F(ShmStoreTest, WhatOneProcessPutsAnotherGets) {
  auto store = open_store();
  StoreProcess other(store_options());
  EXPECT_EQ(other.ask("put key 100000 7"), "ok");
  const auto view = must(store->get("key"));
  EXPECT_EQ(view.bytes().size(), 100'000U);
  EXPECT_TRUE(all_are(view.bytes(), 7));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.bytes().data()) % 64, 0U);
  must(store->put("back", filled(5, 9)));
  EXPECT_EQ(other.ask("get back 0"), "ok 5 9");
}

TEST_F(ShmStoreTest, AWaitingGetIsWokenByTheSealOfAnotherProcess) {
  auto store = open_store();
  StoreProcess other(store_options());
  other.tell("get key 30000");
  ASSERT_EQ(other.process().channel().receive_text(std::chrono::milliseconds(20)), std::nullopt);
  auto writer = must(store->create("key", 3));
  ASSERT_EQ(other.process().channel().receive_text(std::chrono::milliseconds(20)), std::nullopt);
  EXPECT_OK(writer.append(filled(3, 4)));
  EXPECT_OK(writer.seal());
  EXPECT_EQ(other.answer(), "ok 3 4");
}

TEST_F(ShmStoreTest, NobodySeesAnObjectThatIsNotSealed) {
  auto store = open_store();
  {
    auto writer = must(store->create("key", 10));
    EXPECT_OK(writer.append(filled(10, 1)));
    EXPECT_REASON(Reason::kNotFound, store->get("key").status());
    EXPECT_FALSE(must(store->exists("key")));
  }
  EXPECT_REASON(Reason::kNotFound, store->get("key").status());
  EXPECT_EQ(must(store->usage()).used_bytes, 0U);
}

TEST_F(ShmStoreTest, AnEmptyValueIsStoredAndToldApartFromNone) {
  auto store = open_store();
  StoreProcess other(store_options());
  EXPECT_EQ(other.ask("get empty 0"), "not_found");
  must(store->put("empty", {}));
  EXPECT_EQ(other.ask("get empty 0"), "ok 0 0");
  EXPECT_EQ(other.ask("get empty 1000"), "ok 0 0");
  EXPECT_TRUE(must(store->exists("empty")));
  EXPECT_OK(store->erase("empty"));
  EXPECT_EQ(other.ask("get empty 0"), "not_found");
}

TEST_F(ShmStoreTest, KeysAreAnyBytesUpToTheirLimit) {
  auto store = open_store();
  const std::string zeros("a\0b", 3);
  for (const std::string& key :
       {std::string(1, '\xff'), zeros, std::string("a"), std::string(128, 'k'),
        std::string(129, 'k'), std::string(1024, 'k')}) {
    must(store->put(key, filled(key.size(), 3)));
  }
  for (const size_t size : {128, 129, 1024}) {
    EXPECT_EQ(must(store->get(std::string(size, 'k'))).bytes().size(), size);
  }
  EXPECT_EQ(must(store->get(zeros)).bytes().size(), 3U);
  EXPECT_REASON(Reason::kInvalidArgument, store->put("", {}).status());
  EXPECT_REASON(Reason::kInvalidArgument, store->get(std::string(1025, 'k')).status());
  const std::vector<std::string> some = {"a", "", zeros};
  const auto answers = store->get_many(some);
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_TRUE(answers[0].ok());
  EXPECT_REASON(Reason::kInvalidArgument, answers[1].status());
  EXPECT_TRUE(answers[2].ok());
}

TEST_F(ShmStoreTest, AViewKeepsItsBytesWhenTheObjectIsReplacedAndErased) {
  auto store = open_store();
  StoreProcess other(store_options());
  const uint64_t first = must(store->put("key", filled(kMiB, 1)));
  auto view = std::make_optional(must(store->get("key")));
  EXPECT_EQ(view->generation(), first);
  EXPECT_EQ(other.ask("put key 2000 2"), "ok");
  EXPECT_EQ(other.ask("erase key"), "ok");
  for (int i = 0; i < 7; ++i)
    EXPECT_EQ(other.ask("put o" + std::to_string(i) + " 1048576 3"), "ok");
  EXPECT_TRUE(all_are(view->bytes(), 1));
  EXPECT_EQ(must(store->usage()).used_bytes, 8 * kMiB);
  EXPECT_EQ(must(store->usage()).leased, 1U);
  EXPECT_OK(view->valid());
  view.reset();
  EXPECT_EQ(must(store->usage()).used_bytes, 7 * kMiB);
  EXPECT_EQ(must(store->usage()).leased, 0U);
}

TEST_F(ShmStoreTest, GenerationsNeverRepeatAndEraseNamesOne) {
  auto store = open_store();
  const uint64_t first = must(store->put("key", filled(1, 1)));
  const uint64_t second = must(store->put("key", filled(1, 2)));
  EXPECT_GT(second, first);
  EXPECT_OK(store->erase("key", first));
  EXPECT_EQ(must(store->get("key")).generation(), second);
  EXPECT_OK(store->erase("key", second));
  EXPECT_REASON(Reason::kNotFound, store->get("key").status());
  EXPECT_GT(must(store->put("key", filled(1, 3))), second);
}

TEST_F(ShmStoreTest, TheLastSealWinsWhateverWasBegunFirst) {
  auto store = open_store();
  auto early = must(store->create("key", 1));
  auto late = must(store->create("key", 1));
  EXPECT_OK(late.append(filled(1, 2)));
  EXPECT_OK(late.seal());
  EXPECT_OK(early.append(filled(1, 1)));
  EXPECT_OK(early.seal());
  EXPECT_TRUE(all_are(must(store->get("key")).bytes(), 1));
  EXPECT_EQ(must(store->usage()).objects, 1U);
  EXPECT_REASON(Reason::kInvalidState, early.seal());
}

TEST_F(ShmStoreTest, AppendRefusesWhatDoesNotFit) {
  auto store = open_store();
  auto writer = must(store->create("key", 10));
  EXPECT_OK(writer.append(filled(6, 1)));
  EXPECT_REASON(Reason::kOutOfBounds, writer.append(filled(5, 1)));
  EXPECT_OK(writer.append(filled(4, 1)));
  EXPECT_OK(writer.append({}));
  EXPECT_REASON(Reason::kOutOfBounds, writer.append(filled(1, 1)));
  EXPECT_OK(writer.seal());
  EXPECT_EQ(must(store->get("key")).bytes().size(), 10U);
}

// T03: nobody reads, and the pool is full.
TEST_F(ShmStoreTest, PutsBeyondTheCapacityFailAtTheirDeadlineWithoutSpinning) {
  auto store = open_store();
  StoreProcess reader(store_options());
  const PutOptions brief{.timeout = std::chrono::milliseconds(100), .ttl = {}, .interrupted = {}};
  int stored = 0;
  const auto cpu_ms = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
  };
  for (int i = 0; i < 8; ++i) {
    if (store->put("k" + std::to_string(i), filled(kMiB, i), brief).ok()) ++stored;
  }
  EXPECT_EQ(stored, 8);
  const auto before = cpu_ms();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 8; i < 14; ++i) {
    const auto result = store->create("k" + std::to_string(i), kMiB, brief);
    EXPECT_REASON(Reason::kNoSpace, result.status());
  }
  const auto taken = std::chrono::steady_clock::now() - start;
  EXPECT_GE(taken, std::chrono::milliseconds(600));
  EXPECT_LT(cpu_ms() - before, 120) << "it spins";
  for (int i = 0; i < 4; ++i) EXPECT_EQ(reader.ask("erase k" + std::to_string(i)), "ok");
  for (int i = 14; i < 18; ++i) {
    EXPECT_OK(store->put("k" + std::to_string(i), filled(kMiB, i), brief).status());
  }
  EXPECT_REASON(Reason::kNoSpace, store->put("more", filled(1, 1), brief).status());
}

TEST_F(ShmStoreTest, WhatCanNeverFitIsRefusedAtOnce) {
  auto store = open_store();
  const PutOptions patient{.timeout = std::chrono::hours(1), .ttl = {}, .interrupted = {}};
  EXPECT_REASON(Reason::kTooLarge, store->create("key", 8 * kMiB + 1, patient).status());
  EXPECT_REASON(Reason::kTooLarge, store->create("key", UINT64_MAX, patient).status());
  EXPECT_REASON(Reason::kTooLarge,
                store->create(std::string(1024, 'k'), 8 * kMiB, patient).status());
  EXPECT_OK(store->create("key", 8 * kMiB, patient).status());
}

TEST_F(ShmStoreTest, AWriterWithoutSpaceWaitsForTheNextErase) {
  auto store = open_store();
  StoreProcess other(store_options());
  must(store->put("old", filled(6 * kMiB, 1)));
  other.tell("put new 6291456 2");
  ASSERT_EQ(other.process().channel().receive_text(std::chrono::milliseconds(20)), std::nullopt);
  EXPECT_OK(store->erase("old"));
  EXPECT_EQ(other.answer(), "ok");
}

TEST_F(ShmStoreTest, AWriterWithoutSpaceWaitsForTheLastView) {
  auto store = open_store();
  StoreProcess other(store_options());
  must(store->put("old", filled(6 * kMiB, 1)));
  auto view = std::make_optional(must(store->get("old")));
  EXPECT_OK(store->erase("old"));
  other.tell("put new 6291456 2");
  ASSERT_EQ(other.process().channel().receive_text(std::chrono::milliseconds(20)), std::nullopt);
  view.reset();
  EXPECT_EQ(other.answer(), "ok");
}

TEST_F(ShmStoreTest, AWriterWithoutASlotWaitsToo) {
  StoreOptions options = store_options();
  options.arena.max_objects = 2;
  auto store = must(ObjectStore::open(options));
  must(store->put("a", {}));
  auto writer = must(store->create("b", 0));
  const PutOptions now{.timeout = Duration::zero(), .ttl = {}, .interrupted = {}};
  EXPECT_REASON(Reason::kNoSpace, store->create("c", 0, now).status());
  writer.abort();
  EXPECT_OK(store->create("c", 0, now).status());
}

TEST_F(ShmStoreTest, EvictionTakesTheOldestThatNobodyViews) {
  StoreOptions options = store_options();
  options.eviction = EvictionMode::kEvict;
  auto store = must(ObjectStore::open(options));
  for (const char* key : {"a", "b", "c", "d"}) must(store->put(key, filled(2 * kMiB, 1)));
  const auto view = must(store->get("a"));
  must(store->put("e", filled(2 * kMiB, 1)));
  EXPECT_REASON(Reason::kEvicted, store->get("b").status());
  EXPECT_REASON(Reason::kEvicted, store->get("b", std::chrono::hours(1)).status());
  for (const char* key : {"a", "c", "d", "e"}) EXPECT_TRUE(must(store->exists(key))) << key;
  EXPECT_EQ(must(store->usage()).evictions, 1U);
  // What evicting all of them would not make room for evicts none.
  const PutOptions now{.timeout = Duration::zero(), .ttl = {}, .interrupted = {}};
  EXPECT_REASON(Reason::kNoSpace, store->create("f", 7 * kMiB, now).status());
  EXPECT_EQ(must(store->usage()).evictions, 1U);
  must(store->put("b", filled(1, 1)));
  EXPECT_OK(store->get("b").status());
}

TEST_F(ShmStoreTest, AnObjectWhoseTimeHasPassedIsSuperseded) {
  StoreOptions options = store_options();
  options.ttl = std::chrono::nanoseconds(1);
  auto store = must(ObjectStore::open(options));
  must(store->put("default", filled(1, 1)));
  EXPECT_REASON(Reason::kExpired, store->get("default").status());
  EXPECT_FALSE(must(store->exists("default")));
  PutOptions lasting;
  lasting.ttl = Duration(-1);
  must(store->put("lasting", filled(1, 1), lasting));
  EXPECT_OK(store->get("lasting").status());
  lasting.ttl = std::chrono::hours(1);
  must(store->put("default", filled(1, 2), lasting));
  auto view = must(store->get("default"));
  EXPECT_OK(store->expire("default", Duration::zero()));
  EXPECT_REASON(Reason::kExpired, store->get("default").status());
  EXPECT_TRUE(all_are(view.bytes(), 2));
  EXPECT_REASON(Reason::kNotFound, store->expire("default", Duration(-1)));
  EXPECT_OK(store->expire("lasting", std::chrono::nanoseconds(1)));
  EXPECT_REASON(Reason::kExpired, store->get("lasting", std::chrono::hours(1)).status());
  EXPECT_EQ(must(store->usage()).expirations, 3U);
  EXPECT_EQ(must(store->usage()).objects, 0U);
}

TEST_F(ShmStoreTest, ExpiredObjectsMakeRoom) {
  auto store = open_store();
  PutOptions brief;
  brief.ttl = std::chrono::nanoseconds(1);
  brief.timeout = Duration::zero();
  for (int i = 0; i < 20; ++i) EXPECT_OK(store->put("k", filled(5 * kMiB, i), brief).status());
}

TEST_F(ShmStoreTest, CloseEndsWhatWaitsAndLeavesViewsAlone) {
  auto store = open_store();
  must(store->put("full", filled(8 * kMiB, 5)));
  auto view = std::make_optional(must(store->get("full")));
  auto waiting = std::make_unique<std::latch>(2);
  std::jthread getter([&] {
    waiting->count_down();
    EXPECT_REASON(Reason::kClosed, store->get("never", std::chrono::hours(1)).status());
  });
  std::jthread putter([&] {
    waiting->count_down();
    PutOptions patient;
    patient.timeout = std::chrono::hours(1);
    EXPECT_REASON(Reason::kClosed, store->put("more", filled(1, 1), patient).status());
  });
  waiting->wait();
  EXPECT_OK(store->close());
  getter.join();
  putter.join();
  EXPECT_OK(store->close());
  EXPECT_REASON(Reason::kClosed, store->put("x", {}).status());
  EXPECT_REASON(Reason::kClosed, store->get("x").status());
  EXPECT_REASON(Reason::kClosed, store->erase("x"));
  EXPECT_REASON(Reason::kClosed, store->usage().status());
  EXPECT_REASON(Reason::kClosed, store->health());
  EXPECT_TRUE(all_are(view->bytes(), 5));
  EXPECT_EQ(files().size(), 1U);
  view.reset();
  EXPECT_EQ(files().size(), 0U);
}

TEST_F(ShmStoreTest, AWriterThatOutlivesItsStoreIsRefused) {
  auto store = open_store();
  auto writer = must(store->create("key", 10));
  EXPECT_OK(store->close());
  store.reset();
  EXPECT_REASON(Reason::kClosed, writer.seal());
  EXPECT_TRUE(writer.pieces()[0].size() == 10);
}

TEST_F(ShmStoreTest, TheLastToLeaveRemovesTheArena) {
  auto store = open_store();
  {
    StoreProcess other(store_options());
    struct stat info {};
    ASSERT_EQ(::stat((folder() + "/" + file_name()).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600U);
    EXPECT_EQ(other.ask("put key 10 1"), "ok");
    EXPECT_OK(store->close());
    EXPECT_EQ(files(), std::vector<std::string>{file_name()});
    EXPECT_EQ(other.ask("get key 0"), "ok 10 1");
    EXPECT_EQ(other.ask("close"), "ok");
  }
  EXPECT_EQ(files().size(), 0U);
}

TEST_F(ShmStoreTest, AKeptArenaOutlivesItsProcesses) {
  StoreOptions options = store_options();
  options.arena.keep = true;
  must(must(ObjectStore::open(options))->put("key", filled(10, 6)));
  EXPECT_EQ(files().size(), 1U);
  options.arena.capacity = 0;  // Whatever is there.
  auto store = must(ObjectStore::open(options));
  EXPECT_EQ(must(store->usage()).capacity_bytes, 8 * kMiB);
  EXPECT_TRUE(all_are(must(store->get("key")).bytes(), 6));
  EXPECT_OK(store->close());
  EXPECT_EQ(std::remove((folder() + "/" + file_name()).c_str()), 0);
}

TEST_F(ShmStoreTest, NothingIsMadeForWhoOnlyLooks) {
  StoreOptions options = store_options();
  options.arena.capacity = 0;
  EXPECT_REASON(Reason::kNotFound, ObjectStore::open(options).status());
  EXPECT_EQ(files().size(), 0U);
}

TEST_F(ShmStoreTest, AnotherSizeUnderTheSameNameIsRefusedAndNamesBoth) {
  auto store = open_store();
  StoreOptions other = store_options();
  other.arena.capacity = 4 * kMiB;
  const auto refused = ObjectStore::open(other);
  EXPECT_REASON(Reason::kAlreadyExists, refused.status());
  EXPECT_NE(refused.status().message().find("8 MiB"), std::string_view::npos);
  EXPECT_NE(refused.status().message().find("4 MiB"), std::string_view::npos);
  other = store_options();
  other.arena.max_objects = 255;
  EXPECT_REASON(Reason::kAlreadyExists, ObjectStore::open(other).status());
  other.arena.name = "another";
  EXPECT_OK(ObjectStore::open(other).status());
}

TEST_F(ShmStoreTest, OptionsOutOfRangeAreNamed) {
  StoreOptions options = store_options();
  options.arena.name = "a/b";
  const auto refused = ObjectStore::open(options);
  EXPECT_REASON(Reason::kInvalidArgument, refused.status());
  EXPECT_EQ(refused.status().message().substr(0, 5), "name:");
  options = store_options();
  options.arena.max_objects = 0;
  EXPECT_REASON(Reason::kInvalidArgument, ObjectStore::open(options).status());
  options = store_options();
  options.arena.directory = folder() + "/none";
  EXPECT_REASON(Reason::kNotFound, ObjectStore::open(options).status());
}

TEST_F(ShmStoreTest, AnArenaOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  auto store = open_store();
  ASSERT_EQ(::chown((folder() + "/" + file_name()).c_str(), 1234, 1234), 0);
  EXPECT_REASON(Reason::kOtherUser, ObjectStore::open(store_options()).status());
  ASSERT_EQ(::chown((folder() + "/" + file_name()).c_str(), 0, 0), 0);
}

TEST_F(ShmStoreTest, ManyThatOpenAtOnceShareOneArena) {
  std::vector<std::jthread> threads;
  std::latch start(8);
  std::latch opened(8);
  std::atomic<int> found{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      auto store = must(ObjectStore::open(store_options()));
      must(store->put("k" + std::to_string(i), filled(10, i)));
      opened.arrive_and_wait();
      for (int k = 0; k < 8; ++k) found += must(store->exists("k" + std::to_string(k))) ? 1 : 0;
    });
  }
  threads.clear();
  EXPECT_EQ(found, 64);
  EXPECT_EQ(files().size(), 0U);
}

TEST_F(ShmStoreTest, WhatAKilledProcessHeldIsGivenBack) {
  auto store = open_store();
  StoreProcess other(store_options());
  must(store->put("viewed", filled(3 * kMiB, 1)));
  EXPECT_EQ(other.ask("hold viewed"), "ok");
  EXPECT_EQ(other.ask("begin unsealed 4194304"), "ok");
  EXPECT_OK(store->erase("viewed"));
  EXPECT_EQ(must(store->usage()).used_bytes, 7 * kMiB);
  other.process().kill_hard();
  // The writer that needs the space finds out; nobody has told it.
  EXPECT_OK(store->put("all", filled(8 * kMiB, 2)).status());
}

TEST_F(ShmStoreTest, ARunThatWasKilledLeavesNothingToTheNext) {
  {
    StoreProcess other(store_options());
    EXPECT_EQ(other.ask("put old 10 1"), "ok");
    other.process().kill_hard();
  }
  EXPECT_EQ(files().size(), 1U);
  StoreOptions larger = store_options();
  larger.arena.capacity = 9 * kMiB;
  auto store = must(ObjectStore::open(larger));
  EXPECT_REASON(Reason::kNotFound, store->get("old").status());
}

TEST_F(ShmStoreTest, AProcessThatIsStoppedInsideMakesOthersTimeOutAndIsNamed) {
  StoreOptions options = store_options();
  options.arena.lock_timeout = std::chrono::milliseconds(50);
  auto store = must(ObjectStore::open(options));
  must(store->put("there", filled(1, 1)));
  StoreProcess other(options);
  // It is in and out of the lock all the time: stopped often enough, it is stopped inside once.
  const std::string name = "process " + std::to_string(other.process().pid());
  bool stopped_inside = false;
  for (int tries = 0; tries < 2000 && !stopped_inside; ++tries) {
    other.tell("put key 1 1");
    other.process().stop();
    const Status status = store->erase("nothing");
    if (!status.ok()) {
      EXPECT_REASON(Reason::kTimedOut, status);
      EXPECT_NE(status.message().find(name), std::string_view::npos) << status.message();
      EXPECT_OK(store->get("there").status()) << "a hit needs no lock";
      stopped_inside = true;
    }
    other.process().resume();
    EXPECT_EQ(other.answer(), "ok");
  }
  if (!stopped_inside) GTEST_SKIP() << "it was never stopped inside the lock";
  EXPECT_OK(store->erase("nothing"));
}

TEST_F(ShmStoreTest, AForkedChildIsRefusedAndTouchesNothing) {
  auto store = open_store();
  must(store->put("key", filled(10, 1)));
  auto view = std::make_optional(must(store->get("key")));
  auto writer = std::make_optional(must(store->create("w", 10)));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = store->get("key").status().reason() == Reason::kForked &&
                         store->put("key", {}).status().reason() == Reason::kForked &&
                         store->erase("key").reason() == Reason::kForked &&
                         store->close().reason() == Reason::kForked &&
                         writer->seal().reason() == Reason::kForked &&
                         view->valid().reason() == Reason::kForked;
    view.reset();
    writer.reset();
    store.reset();
    const auto own = ObjectStore::open(store_options());
    ::_exit(refused && own.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(must(store->usage()).leased, 1U);
  EXPECT_OK(writer->seal());
  EXPECT_TRUE(all_are(view->bytes(), 1));
}

TEST_F(ShmStoreTest, AnInterruptedCallIsCancelled) {
  auto store = open_store();
  must(store->put("full", filled(8 * kMiB, 1)));
  int asked = 0;
  const Interrupted soon = [&asked] { return ++asked == 2; };
  EXPECT_REASON(Reason::kCancelled, store->get("never", std::chrono::hours(1), soon).status());
  asked = 0;
  const PutOptions options{.timeout = std::chrono::hours(1), .ttl = {}, .interrupted = soon};
  EXPECT_REASON(Reason::kCancelled, store->put("more", filled(1, 1), options).status());
}

TEST_F(ShmStoreTest, MetricsCountEachOutcomeOnce) {
  auto store = open_store();
  must(store->put("key", filled(1000, 1)));
  EXPECT_OK(store->get("key").status());
  EXPECT_REASON(Reason::kNotFound, store->get("none").status());
  EXPECT_REASON(Reason::kTimedOut, store->get("none", std::chrono::milliseconds(1)).status());
  const std::string text = store->metrics_text();
  for (const char* line :
       {"stagelink_store_calls_total{store=\"test\",backend=\"shm\",call=\"create\",reason=\"ok\"} "
        "1",
        "call=\"seal\",reason=\"ok\"} 1", "call=\"get\",reason=\"ok\"} 1",
        "call=\"get\",reason=\"not_found\"} 1", "call=\"get\",reason=\"timed_out\"} 1",
        "stagelink_store_put_bytes_total{store=\"test\",backend=\"shm\"} 1000",
        "stagelink_store_get_bytes_total{store=\"test\",backend=\"shm\"} 1000",
        "stagelink_store_capacity_bytes{store=\"test\",backend=\"shm\"} 8388608",
        "stagelink_store_objects{store=\"test\",backend=\"shm\"} 1",
        "call=\"get\",le=\"+Inf\"} 1"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

}  // namespace
}  // namespace stagelink::test
