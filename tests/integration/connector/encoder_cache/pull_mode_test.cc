// Embeddings from producers to consumers: who has which bytes, and until when.

#include <atomic>
#include <future>
#include <thread>

#include "connector/encoder_cache/consumer/fetcher.h"
#include "connector/encoder_cache/metrics.h"
#include "connector/encoder_cache/registry/registry_server.h"
#include "integration/connector/encoder_cache/cache_test.h"
#include "integration/support/child_process.h"

namespace stagelink::test {
namespace {

// A producer in a process of its own: "save HASH SEED BYTES", "evict HASH", "usage".
int produce(Channel& parent) {
  const auto start = parent.receive_text();
  if (!start.has_value()) return 1;
  const config::ConfigNode extra =
      must(config::parse_config(*start, config::ConfigSyntax::kJson, "t"));
  auto producer = must(ec::Producer::create(must(ec::load_cache_options(extra))));
  parent.send(producer->producer_zmq());
  while (const auto text = parent.receive_text(60s)) {
    char verb[16] = {};
    char hash[64] = {};
    unsigned long long seed = 0;
    unsigned long long bytes = 0;
    std::sscanf(text->c_str(), "%15s %63s %llu %llu", verb, hash, &seed, &bytes);
    if (std::string_view(verb) == "save") {
      std::vector<std::byte> data(bytes);
      fill_pattern(data, seed);
      const Status status = producer->save(hash, info_of(bytes), data);
      parent.send(status.ok() ? producer->flush(5s).to_string() : status.to_string());
    } else if (std::string_view(verb) == "evict") {
      parent.send(producer->evict(hash) ? "ok" : "not there");
    } else {
      const ec::ProducerUsage usage = producer->usage();
      parent.send(fmt::format("{} {} {}", usage.entries, usage.pool_used, usage.leases));
    }
  }
  return 0;
}
const RoleRegistration kProduce("ec-producer", produce);

class PullModeTest : public CacheTest {
 protected:
  std::string json(std::string_view keys) const {
    return fmt::format(
        R"({{"host": "127.0.0.1", "registry_http_port": 0, "runtime_dir": "{}",
             "buffer_size": "16MiB", {}}})",
        runtime_dir(), keys);
  }
  std::string ask(ChildProcess& child, const std::string& text) {
    child.channel().send(text);
    return child.channel().receive_text().value_or("gone");
  }
  std::unique_ptr<ec::RegistryServer> registry(uint32_t port = 0) {
    ec::RegistryOptions options;
    options.port = port;
    return must(ec::RegistryServer::start(options));
  }
  static std::string url(const ec::RegistryServer& registry) {
    return "http://" + registry.endpoint().to_string();
  }
  std::unique_ptr<ec::Fetcher> fetcher(const std::string& url, uint32_t readers,
                                       Duration wait = 0s) {
    ec::CacheOptions options = cache_options();
    options.remote_registry_url = url;
    options.registry_wait = wait;
    return must(ec::Fetcher::create(options, readers));
  }
  static bool ends(ec::Fetcher& fetcher, std::string_view hash, ec::FetchState state) {
    return eventually([&] { return fetcher.look(hash).state == state; });
  }
};

TEST_F(PullModeTest, AFetcherFindsEmbeddingsAndHandsThemToEachWorkerOnce) {
  auto known = registry();
  ChildProcess child("ec-producer");
  (void)ask(child, json(fmt::format(R"("remote_registry_url": "{}")", url(*known))));
  ASSERT_EQ(ask(child, "save h1 7 2097152"), "ok");
  auto fetching = fetcher(url(*known), /*readers=*/2);
  fetching->want("h1");
  fetching->want("h1");
  ASSERT_TRUE(ends(*fetching, "h1", ec::FetchState::kReady))
      << fetching->look("h1").why.to_string();
  const ec::ProducerEntry place = fetching->look("h1").place;
  fetching->handed_on("h1");
  EXPECT_GT(fetching->consumer().usage().pool_used, 2097151u);
  for (int rank = 0; rank < 2; ++rank) {
    auto worker = consumer(cache_options(kEcMib));
    const PrivateMemory tensor(2097152);
    const ec::LoadRequest wanted{"h1", {place}, tensor.bytes(), /*is_handed_on=*/true};
    ASSERT_OK(load(*worker, wanted).status());
    EXPECT_EQ(first_wrong(tensor.bytes(), 7), std::nullopt);
    EXPECT_TRUE(tensor.canaries_intact());
  }
  // Both have it: it is gone here, and the producer is held by nobody.
  EXPECT_TRUE(eventually([&] { return fetching->consumer().usage().pool_used == 0; }));
  EXPECT_EQ(ask(child, "evict h1"), "ok");
  EXPECT_EQ(ask(child, "usage - -"), "0 0 0");
  EXPECT_EQ(known->table().usage().entries, 0u);
  fetching->want("h1");
  EXPECT_TRUE(ends(*fetching, "h1", ec::FetchState::kMissing));
}

TEST_F(PullModeTest, AHashThatIsPublishedLaterIsWaitedForAndOneThatIsDroppedGivesAllBack) {
  auto known = registry();
  auto fetching = fetcher(url(*known), 1, /*wait=*/20s);
  fetching->want("late");
  fetching->want("never");
  EXPECT_TRUE(eventually([&] { return known->waiting() > 0; }));
  ec::CacheOptions options = cache_options();
  options.remote_registry_url = url(*known);
  auto owner = producer(options);
  ASSERT_OK(save(*owner, "late", 3));
  ASSERT_TRUE(ends(*fetching, "late", ec::FetchState::kReady));
  EXPECT_EQ(fetching->look("never").state, ec::FetchState::kLooking);
  fetching->drop("late");
  fetching->drop("never");
  EXPECT_TRUE(eventually([&] { return fetching->consumer().usage().pool_used == 0; }));
  EXPECT_EQ(fetching->usage().wanted, 0u);
}

TEST_F(PullModeTest, ARegistryThatIsStartedAgainIsToldEverythingAndADeadOneIsAMiss) {
  auto known = registry();
  const uint16_t port = known->endpoint().port;
  ec::CacheOptions options = cache_options();
  options.remote_registry_url = url(*known);
  options.registry_lease = 1s;
  auto owner = producer(options);
  ASSERT_OK(save(*owner, "h", 3));
  ASSERT_OK(owner->flush(5s));
  known.reset();
  auto fetching = fetcher(options.remote_registry_url, 1);
  fetching->want("h");
  EXPECT_TRUE(ends(*fetching, "h", ec::FetchState::kMissing));
  fetching->drop("h");
  known = registry(port);
  EXPECT_TRUE(eventually([&] { return known->table().usage().entries == 1; }, 20s));
  fetching->want("h");
  EXPECT_TRUE(ends(*fetching, "h", ec::FetchState::kReady)) << fetching->look("h").why.to_string();
}

TEST_F(PullModeTest, AProducerThatRestartsOnItsPortsIsFoundAgain) {
  std::string address;
  auto reader = consumer(cache_options());
  std::string ports;
  for (int round = 0; round < 3; ++round) {
    ChildProcess child("ec-producer");
    address = ask(child, json(ports.empty() ? R"("zmq_port": 0)" : ports));
    ports = fmt::format(R"("zmq_port": {})", address.substr(address.rfind(':') + 1));
    ASSERT_EQ(ask(child, fmt::format("save h {} 1048576", round)), "ok");
    // Whoever asked while it was gone is told so for a moment longer.
    std::optional<Result<ec::Embedding>> got;
    ASSERT_TRUE(eventually([&] {
      got.emplace(load(*reader, request("h", address)));
      return got->ok();
    })) << got->status().to_string()
        << " in round " << round;
    EXPECT_EQ(first_wrong((*got)->piece.bytes(), static_cast<uint64_t>(round)), std::nullopt);
    child.kill_hard();
    const Status lost = load(*reader, request("h", address)).status();
    EXPECT_EQ(lost.scope(), Scope::kPeer) << lost.to_string();
  }
}

TEST_F(PullModeTest, TheSecondProducerOfAHashIsAskedWhenTheFirstHasItNoMore) {
  auto first = producer(cache_options());
  auto second = producer(cache_options());
  ASSERT_OK(save(*second, "h", 5));
  auto reader = consumer(cache_options());
  ec::LoadRequest wanted = request("h", first->producer_zmq());
  wanted.producers.push_back({info_of(kEcMib), second->producer_zmq(), 0});
  const auto got = must(load(*reader, wanted));
  EXPECT_EQ(got.producer_zmq, second->producer_zmq());
  EXPECT_EQ(first_wrong(got.piece.bytes(), 5), std::nullopt);
}

TEST_F(PullModeTest, OneReadServesAllWhoWantAHashAtTheSameTime) {
  auto owner = producer(cache_options());
  ASSERT_OK(save(*owner, "h", 5, 4 * kEcMib));
  auto reader = consumer(cache_options());
  std::vector<ec::LoadRequest> same(3, request("h", owner->producer_zmq(), 4 * kEcMib));
  const auto got = reader->load(same);
  for (const auto& one : got) {
    ASSERT_OK(one.status());
    EXPECT_EQ(first_wrong(Result(one)->piece.bytes(), 5), std::nullopt);
  }
  EXPECT_EQ(reader->metrics().joined(), 2u);
  EXPECT_EQ(reader->metrics().loads(Reason::kOk), 1u);
}

TEST_F(PullModeTest, ALoadThatNobodyWantsAnyMoreEndsAndLeavesNothing) {
  ChildProcess child("ec-producer");
  const std::string address = ask(child, json(R"("zmq_port": 0)"));
  ASSERT_EQ(ask(child, "save h 1 1048576"), "ok");
  auto reader = consumer(cache_options());
  ASSERT_OK(load(*reader, request("h", address)).status());  // It is known, and then it stops.
  child.stop();
  std::atomic<bool> wanted{true};
  auto late = std::async(std::launch::async, [&] {
    return load(*reader, request("h", address), {10s, [&] { return !wanted.load(); }}).status();
  });
  EXPECT_TRUE(eventually([&] { return reader->usage().in_flight == 1; }));
  wanted.store(false);
  const Status status = late.get();
  child.resume();
  EXPECT_TRUE(status.code() == Code::kCancelled || status.code() == Code::kUnreachable ||
              status.ok())
      << status.to_string();
  EXPECT_EQ(reader->usage().in_flight, 0u);
  EXPECT_TRUE(eventually([&] { return reader->usage().pool_used == 0; }));
  EXPECT_TRUE(eventually([&] { return ask(child, "usage - -").ends_with(" 0"); }));
}

TEST_F(PullModeTest, AnotherModelIsRefusedByName) {
  ec::CacheOptions options = cache_options();
  options.identity = "model a, dtype bfloat16";
  auto owner = producer(options);
  ASSERT_OK(save(*owner, "h", 5));
  options.identity = "model b, dtype bfloat16";
  auto other = consumer(options);
  const Status refused = load(*other, request("h", owner->producer_zmq())).status();
  EXPECT_REASON(Reason::kIncompatible, refused);
  EXPECT_NE(refused.message().find("model a"), std::string_view::npos) << refused.to_string();
  EXPECT_NE(refused.message().find("model b"), std::string_view::npos) << refused.to_string();
}

TEST_F(PullModeTest, WhatDoesNotGoTogetherIsRefusedBeforeAnythingIsAllocated) {
  auto owner = producer(cache_options());
  auto reader = consumer(cache_options());
  const uint64_t before = owner->usage().pool_used;
  const std::vector<std::byte> data(4096);
  const auto saved = [&](ec::EmbeddingInfo info) { return owner->save("h", info, data); };
  EXPECT_REASON(Reason::kInvalidArgument, saved({4096, {0, 1024}, "float32"}));
  EXPECT_REASON(Reason::kInvalidArgument, saved({4096, {uint64_t(-8), uint64_t(-128)}, "float32"}));
  EXPECT_REASON(Reason::kInvalidArgument, saved({4096, {1024}, "float31"}));
  EXPECT_REASON(Reason::kIncompatible, saved({4096, {1023}, "float32"}));
  EXPECT_REASON(Reason::kIncompatible, saved({8192, {2048}, "float32"}));
  EXPECT_EQ(owner->usage().pool_used, before);
  ec::LoadRequest wanted = request("h", owner->producer_zmq(), 4096);
  wanted.producers[0].info.shape = {uint64_t(-8), uint64_t(-128)};
  EXPECT_REASON(Reason::kInvalidArgument, load(*reader, wanted).status());
  EXPECT_EQ(reader->usage().pool_used, 0u);
  // A registry that lies about the size: no byte is shown as loaded.
  ASSERT_OK(owner->save("h", info_of(4096), data));
  EXPECT_REASON(Reason::kIncompatible,
                load(*reader, request("h", owner->producer_zmq(), 8192)).status());
  EXPECT_EQ(reader->usage().pool_used, 0u);
}

// --- The pool ---

TEST_F(PullModeTest, APoolThatIsFullMakesRoomFromTheOldestThatNobodyReads) {
  auto owner = producer(cache_options(16 * kEcMib));
  for (int i = 0; i < 40; ++i) {
    ASSERT_OK(save(*owner, fmt::format("h{}", i), static_cast<uint64_t>(i)));
    EXPECT_LE(owner->usage().pool_used, 16 * kEcMib);
  }
  const uint64_t kept = owner->usage().entries;
  EXPECT_GE(kept, 15u);
  EXPECT_EQ(owner->usage().evictions, 40 - kept);
  auto reader = consumer(cache_options());
  for (int i = 0; i < 40; i += 2) {
    const auto got = load(*reader, request(fmt::format("h{}", i), owner->producer_zmq()));
    EXPECT_EQ(got.ok(), owner->has(fmt::format("h{}", i)));
    if (!got.ok()) continue;
    EXPECT_EQ(first_wrong(Result(got)->piece.bytes(), static_cast<uint64_t>(i)), std::nullopt);
  }
  for (int i = 30; i < 40; ++i) EXPECT_TRUE(owner->evict(fmt::format("h{}", i)));
  EXPECT_FALSE(owner->evict("h39"));
  ASSERT_OK(save(*owner, "h39", 139));
  const auto again = must(load(*reader, request("h39", owner->producer_zmq())));
  EXPECT_EQ(first_wrong(again.piece.bytes(), 139), std::nullopt);
}

TEST_F(PullModeTest, WhileOthersEvictAReaderHasTheRightBytesOrAMiss) {
  auto owner = producer(cache_options(4 * kEcMib));
  auto reader = consumer(cache_options());
  std::atomic<bool> stop{false};
  std::thread churn([&] {
    for (uint64_t turn = 0; !stop.load(); ++turn) {
      (void)save(*owner, fmt::format("h{}", turn % 8), turn % 8);
    }
  });
  // The writer begins when it is scheduled, and what it saves may go before it is read.
  int right = 0;
  const Deadline end = Deadline::in(std::chrono::seconds(30));
  for (int turn = 0; (turn < 50 || right == 0) && !end.passed(); ++turn) {
    const auto seed = static_cast<uint64_t>(turn % 8);
    const auto got = load(*reader, request(fmt::format("h{}", seed), owner->producer_zmq()));
    if (got.ok()) {
      ++right;
      EXPECT_EQ(first_wrong(Result(got)->piece.bytes(), seed), std::nullopt);
    } else {
      EXPECT_TRUE(got.status().code() == Code::kNotFound ||
                  got.status().code() == Code::kSuperseded)
          << got.status().to_string();
    }
  }
  stop.store(true);
  churn.join();
  EXPECT_GT(right, 0);
  EXPECT_TRUE(eventually([&] { return owner->usage().leases == 0; }));
}

TEST_F(PullModeTest, BoundsHoldInEntriesAndInBytes) {
  ec::CacheOptions options = cache_options(4 * kEcMib);
  options.max_entries = 2;
  auto owner = producer(options);
  for (const char* hash : {"a", "b", "c"}) ASSERT_OK(save(*owner, hash, 1, 4096));
  EXPECT_EQ(owner->usage().entries, 2u);
  EXPECT_FALSE(owner->has("a"));
  EXPECT_REASON(Reason::kTooLarge, save(*owner, "big", 1, 8 * kEcMib));
  // A consumer's pool that is full: nothing is read, and later there is room.
  ASSERT_OK(save(*owner, "d", 4, 3 * kEcMib));
  auto reader = consumer(cache_options(4 * kEcMib));
  auto held = load(*reader, request("d", owner->producer_zmq(), 3 * kEcMib));
  ASSERT_OK(held.status());
  ASSERT_OK(save(*owner, "e", 5, 3 * kEcMib));
  ec::LoadTerms brief;
  brief.timeout = 300ms;
  const Status full =
      load(*reader, request("e", owner->producer_zmq(), 3 * kEcMib), brief).status();
  EXPECT_TRUE(full.code() == Code::kNoSpace || full.code() == Code::kTimedOut) << full.to_string();
  held = Result<ec::Embedding>(full);
  EXPECT_OK(load(*reader, request("e", owner->producer_zmq(), 3 * kEcMib)).status());
}

}  // namespace
}  // namespace stagelink::test
