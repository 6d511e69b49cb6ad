// What the embedded store promises, between two processes where something crosses processes.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include <sys/resource.h>

#include "integration/store/store_test.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

using ShmStoreTest = StoreTest;

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

// T17: of many keys, each has its own answer.
TEST_F(ShmStoreTest, GetManyAnswersForEachKeyWithOneDeadline) {
  auto store = open_store();
  StoreProcess other(store_options());
  for (int i = 0; i < 8; ++i) {
    if (i == 5) continue;
    EXPECT_EQ(other.ask("put k" + std::to_string(i) + " 1000 " + std::to_string(i)), "ok");
  }
  std::vector<std::string> keys;
  for (int i = 0; i < 8; ++i) keys.push_back("k" + std::to_string(i));
  auto views = store->get_many(keys);
  ASSERT_EQ(views.size(), 8U);
  for (int i = 0; i < 8; ++i) {
    const auto at = static_cast<size_t>(i);
    if (i == 5) {
      EXPECT_REASON(Reason::kNotFound, views[at].status());
    } else {
      EXPECT_TRUE(all_are(must(std::move(views[at])).bytes(), i));
    }
  }
  const std::vector<std::string> none(1000, "none");
  const auto start = std::chrono::steady_clock::now();
  for (const auto& view : store->get_many(none, std::chrono::milliseconds(20))) {
    EXPECT_REASON(Reason::kTimedOut, view.status());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));  // Not 20.
}

// T19: two that put, one that gets and erases, and a putter that is killed now and then.
TEST_F(ShmStoreTest, WhoGetsDuringPutsSeesOneOfThemWhole) {
  auto store = open_store();
  std::optional<StoreProcess> putters[2];
  for (auto& putter : putters) putter.emplace(store_options());
  SplitMix64 random(seed());
  int hits = 0;
  const int rounds = kThreadSanitized ? 30 : 150;
  for (int round = 0; round < rounds; ++round) {
    putters[0]->tell("put key 1024 65");
    putters[1]->tell("put key 1048576 66");
    for (int look = 0; look < 3; ++look) {
      auto view = store->get("key");
      if (!view.ok()) {
        EXPECT_REASON(Reason::kNotFound, view.status());
        continue;
      }
      ++hits;
      const bool is_a = view->bytes().size() == 1024;
      EXPECT_TRUE(is_a || view->bytes().size() == kMiB);
      EXPECT_TRUE(all_are(view->bytes(), is_a ? 'A' : 'B'));
      if (round % 25 == 0) {
        EXPECT_OK(store->erase("key"));
      }
    }
    if (round % 20 == 10) {
      putters[1]->process().kill_hard();
      putters[1].emplace(store_options());
    } else {
      EXPECT_EQ(putters[1]->answer(), "ok");
    }
    EXPECT_EQ(putters[0]->answer(), "ok");
    must(store->put("key", filled(10, 1)));
    EXPECT_OK(store->erase("key"));
  }
  EXPECT_GT(hits, 0);
  EXPECT_EQ(must(store->usage()).objects, 0U);
}

TEST_F(ShmStoreTest, ManyThreadsAndASecondStoreOfOneProcessSeeWholeObjects) {
  StoreOptions options = store_options();
  options.eviction = EvictionMode::kEvict;
  auto store = must(ObjectStore::open(options));
  auto second = must(ObjectStore::open(options));
  std::atomic<int> torn{0};
  std::atomic<int> hits{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      SplitMix64 random(seed() + static_cast<uint64_t>(t));
      ObjectStore& mine = t % 2 == 0 ? *store : *second;
      for (int i = 0; i < 400; ++i) {
        const std::string key = "k" + std::to_string(random.below(4));
        if (t < 2) {
          const auto value = static_cast<int>(random.below(200));
          EXPECT_OK(mine.put(key, filled(1 + random.below(100'000), value)).status());
        } else if (random.below(20) == 0) {
          EXPECT_OK(mine.erase(key));
        } else if (auto view = mine.get(key); view.ok()) {
          const auto bytes = view->bytes();
          if (!all_are(bytes, static_cast<int>(bytes[0]))) ++torn;
          ++hits;
        }
      }
    });
  }
  threads.clear();
  EXPECT_EQ(torn, 0);
  EXPECT_GT(hits, 0);
  EXPECT_EQ(must(store->usage()).leased, 0U);
}

// T36: more than fits into 31, and by STAGELINK_HUGE_OBJECT into 32 bits.
TEST_F(ShmStoreTest, AnObjectBeyondFourGiBKeepsItsLengthAndItsTail) {
  if (std::getenv("STAGELINK_HUGE_OBJECT") == nullptr) {
    GTEST_SKIP() << "takes 5 GiB of /dev/shm: set STAGELINK_HUGE_OBJECT";
  }
  StoreOptions options = store_options();
  const uint64_t size = (uint64_t{4} << 30) + 8192;
  options.arena.capacity = size;
  auto store = must(ObjectStore::open(options));
  {
    auto writer = must(store->create("huge", size));
    const auto memory = writer.pieces()[0];
    std::memset(memory.data(), 1, memory.size());
    memory.back() = std::byte{77};
    memory[uint64_t{1} << 32] = std::byte{78};
    EXPECT_OK(writer.seal());
  }
  const auto view = must(store->get("huge"));
  ASSERT_EQ(view.bytes().size(), size);
  EXPECT_EQ(view.bytes()[0], std::byte{1});
  EXPECT_EQ(view.bytes()[uint64_t{1} << 32], std::byte{78});
  EXPECT_EQ(view.bytes().back(), std::byte{77});
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
