// Embeddings that producers push: what is reserved, who is told, and what ends it.

#include <cstdio>

#include "integration/connector/encoder_cache/push_test.h"
#include "integration/support/secret_files.h"

namespace stagelink::test {
namespace {

// A producer in a process of its own: "push TRANSFER CONSUMER HASH BYTES", "save HASH SEED BYTES".
int push_producer(Channel& parent) {
  const auto start = parent.receive_text();
  if (!start.has_value()) return 1;
  const config::ConfigNode extra =
      must(config::parse_config(*start, config::ConfigSyntax::kJson, "t"));
  auto producer = must(ec::Producer::create(must(ec::load_cache_options(extra))));
  parent.send(producer->producer_zmq());
  while (const auto text = parent.receive_text(60s)) {
    char verb[16] = {};
    char a[64] = {};
    char b[64] = {};
    char c[64] = {};
    unsigned long long bytes = 0;
    std::sscanf(text->c_str(), "%15s %63s %63s %63s %llu", verb, a, b, c, &bytes);
    if (std::string_view(verb) == "failures") {
      const auto failures = producer->take_push_failures();
      parent.send(failures.empty() ? "none"
                                   : std::string(reason_name(failures.front().why.reason())));
    } else if (std::string_view(verb) == "push") {
      parent.send(producer->push({a, b, c, info_of(bytes)}).to_string());
    } else {
      std::vector<std::byte> data(std::stoull(c));
      fill_pattern(data, std::stoull(b));
      parent.send(producer->save(a, info_of(data.size()), data).to_string());
    }
  }
  return 0;
}
const RoleRegistration kPushProducer("ec-push-producer", push_producer);

class PushModeTest : public PushTest {};

TEST_F(PushModeTest, RoomIsTakenBeforeAnEmbeddingIsMadeAndItIsReadAsSoonAsItIs) {
  auto fetching = fetcher(push_options());
  ChildProcess child("ec-push-producer");
  (void)ask(child, child_json());
  fetching->expect("h1", "t1");
  EXPECT_EQ(fetching->look("h1").state, ec::FetchState::kExpected);
  ASSERT_EQ(ask(child, fmt::format("push t1 {} h1 2097152", fetching->consumer_zmq())), "ok");
  ASSERT_TRUE(reserved(*fetching, 1));
  EXPECT_GE(fetching->consumer().usage().pool_used, 2097152u);
  EXPECT_EQ(fetching->look("h1").state, ec::FetchState::kExpected);
  ASSERT_EQ(ask(child, "save h1 7 2097152"), "ok");
  ASSERT_TRUE(ends(*fetching, "h1", ec::FetchState::kReady))
      << fetching->look("h1").why.to_string();
  expect_bytes(*fetching, "h1", 7, 2097152);
  fetching->handed_on("h1");
  EXPECT_TRUE(reserved(*fetching, 0));
  EXPECT_EQ(fetching->look("h1").state, ec::FetchState::kUnknown);
  // It stays until its room is wanted: the next one of the same picture is here already.
  EXPECT_EQ(fetching->desk()->usage().idle, 1u);
  ASSERT_EQ(ask(child, fmt::format("push t2 {} h1 2097152", fetching->consumer_zmq())), "ok");
  fetching->expect("h1", "t2");
  ASSERT_TRUE(ends(*fetching, "h1", ec::FetchState::kReady));
  expect_bytes(*fetching, "h1", 7, 2097152);
  EXPECT_EQ(fetching->consumer().metrics().loads(Reason::kOk), 1u);
  fetching->handed_on("h1");
  expect_nothing_held(*fetching);
}

// E1: a dead writer's reservation ends by its time, gives its room back, and its name may be used.
TEST_F(PushModeTest, AProducerThatIsKilledLeavesNothingAndItsTransferMayBeginAgain) {
  ec::CacheOptions options = push_options();
  options.reservation_ttl = 1s;
  auto fetching = fetcher(options);
  {
    ChildProcess child("ec-push-producer");
    (void)ask(child, child_json());
    fetching->expect("h1", "t1");
    (void)ask(child, fmt::format("push t1 {} h1 1048576", fetching->consumer_zmq()));
    ASSERT_TRUE(reserved(*fetching, 1));
    child.kill_hard();
  }
  ASSERT_TRUE(ends(*fetching, "h1", ec::FetchState::kMissing));
  EXPECT_REASON(Reason::kExpired, fetching->look("h1").why);
  expect_nothing_held(*fetching);
  fetching->drop("h1");
  auto owner = producer(options);
  ASSERT_OK(owner->push(order("t1", *fetching, "h1")));
  ASSERT_OK(save(*owner, "h1", 3));
  fetching->expect("h1", "t1");
  ASSERT_TRUE(ends(*fetching, "h1", ec::FetchState::kReady))
      << fetching->look("h1").why.to_string();
  expect_bytes(*fetching, "h1", 3);
}

// E2, E7: all who were promised one picture succeed with one read; who follows a dead writer leads.
TEST_F(PushModeTest, FollowersSucceedWithTheirWriterAndInItsPlace) {
  auto fetching = fetcher(push_options());
  std::vector<std::unique_ptr<ec::Producer>> owners;
  for (int i = 0; i < 3; ++i) {
    owners.push_back(producer(push_options()));
    const std::string transfer = fmt::format("t{}", i);
    fetching->expect("h", transfer);
    ASSERT_OK(owners.back()->push(order(transfer, *fetching, "h")));
    ASSERT_TRUE(reserved(*fetching, i + 1));
  }
  // The writer gives up: nobody waits for it, and its followers go on.
  owners[0]->give_up("h", Status(Reason::kNoSpace, "the encoder failed"));
  ASSERT_TRUE(reserved(*fetching, 2));
  EXPECT_EQ(fetching->desk()->usage().promoted, 1u);
  EXPECT_EQ(fetching->look("h").state, ec::FetchState::kExpected);
  EXPECT_EQ(owners[0]->take_push_failures().size(), 1u);
  ASSERT_OK(save(*owners[2], "h", 5));
  ASSERT_TRUE(ends(*fetching, "h", ec::FetchState::kReady));
  EXPECT_TRUE(eventually([&] { return owners[2]->pending_pushes() == 0; }));
  expect_bytes(*fetching, "h", 5);
  fetching->handed_on("h");
  // The other follower completes after its request has the embedding: a success.
  ASSERT_OK(save(*owners[1], "h", 5));
  EXPECT_TRUE(eventually([&] { return owners[1]->pending_pushes() == 0; }));
  for (const auto& owner : owners) EXPECT_TRUE(owner->take_push_failures().empty());
  EXPECT_EQ(pushes(*owners[1], Reason::kOk) + pushes(*owners[2], Reason::kOk), 2u);
  EXPECT_EQ(fetching->consumer().metrics().loads(Reason::kOk), 1u);
  expect_nothing_held(*fetching);
  // What was handed on is held by nobody: it may be evicted.
  for (const auto& owner : owners) {
    (void)owner->evict("h");
    EXPECT_TRUE(eventually([&] { return owner->usage().pool_used < kEcMib; }));
  }
}

// E5: a full pool is waited for, and then said.
TEST_F(PushModeTest, AFullPoolIsWaitedForUpToItsTimeAndThenRefused) {
  ec::CacheOptions options = push_options(4 * kEcMib);
  options.space_timeout = 30s;
  auto fetching = fetcher(options);
  auto owner = producer(push_options());
  for (const char* hash : {"a", "b", "c"}) ASSERT_OK(owner->push(order(hash, *fetching, hash)));
  ASSERT_TRUE(reserved(*fetching, 3));
  ASSERT_OK(owner->push(order("big", *fetching, "big", 3 * kEcMib)));
  EXPECT_TRUE(eventually([&] { return fetching->desk()->usage().queued == 1; }));
  // Two are given up, and the third is taken and becomes idle: then there is room.
  owner->cancel_push("a");
  owner->cancel_push("b");
  ASSERT_OK(save(*owner, "c", 1));
  fetching->expect("c", "c");
  ASSERT_TRUE(ends(*fetching, "c", ec::FetchState::kReady));
  expect_bytes(*fetching, "c", 1);
  EXPECT_EQ(fetching->desk()->usage().queued, 1u);
  fetching->handed_on("c");
  ASSERT_TRUE(reserved(*fetching, 1));
  ASSERT_OK(owner->push(order("never", *fetching, "never", 64 * kEcMib)));
  EXPECT_TRUE(eventually([&] { return pushes(*owner, Reason::kTooLarge) == 1; }));

  options.space_timeout = 20ms;
  auto hasty = fetcher(options);
  ASSERT_OK(owner->push(order("first", *hasty, "first", 3 * kEcMib)));
  ASSERT_TRUE(reserved(*hasty, 1));
  hasty->expect("second", "second");
  ASSERT_OK(owner->push(order("second", *hasty, "second", 3 * kEcMib)));
  ASSERT_TRUE(ends(*hasty, "second", ec::FetchState::kMissing));
  EXPECT_REASON(Reason::kNoSpace, hasty->look("second").why);
  EXPECT_TRUE(eventually([&] { return pushes(*owner, Reason::kNoSpace) == 1; }));
}

// E6: whatever fails is told at both ends, at once.
TEST_F(PushModeTest, APushThatFailsIsToldToItsProducerAndToTheRequestThatWaits) {
  auto fetching = fetcher(push_options());
  ec::CacheOptions small = push_options(kEcMib);
  small.space_timeout = 1ms;
  small.control_timeout = 300ms;
  auto owner = producer(small);
  fetching->expect("h1", "t1");
  ASSERT_OK(owner->push(order("t1", *fetching, "h1", 8 * kEcMib)));
  ASSERT_TRUE(reserved(*fetching, 1));
  EXPECT_FALSE(save(*owner, "h1", 1, 8 * kEcMib).ok()) << "larger than the producer's pool";
  ASSERT_TRUE(ends(*fetching, "h1", ec::FetchState::kMissing));
  auto failures = owner->take_push_failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].transfer_id, "t1");
  EXPECT_REASON(Reason::kTooLarge, failures[0].why);
  EXPECT_TRUE(owner->take_push_failures().empty());
  // Another shape than was announced.
  fetching->expect("h2", "t2");
  ASSERT_OK(owner->push(order("t2", *fetching, "h2", 8192)));
  ASSERT_TRUE(reserved(*fetching, 1));
  ASSERT_OK(save(*owner, "h2", 1, 4096));
  ASSERT_TRUE(ends(*fetching, "h2", ec::FetchState::kMissing));
  EXPECT_EQ(pushes(*owner, Reason::kIncompatible), 1u);
  // Nobody there, and what cannot be ordered at all.
  ASSERT_OK(owner->push({"t3", "tcp://127.0.0.1:1", "h3", info_of(4096)}));
  EXPECT_TRUE(eventually([&] { return pushes(*owner, Reason::kUnreachable) == 1; }));
  EXPECT_REASON(Reason::kInvalidArgument, owner->push({"t4", "nowhere", "h", info_of(4096)}));
  EXPECT_REASON(Reason::kInvalidArgument, owner->push({"", "tcp://127.0.0.1:1", "h", info_of(1)}));
  EXPECT_EQ(owner->take_push_failures().size(), 4u);
  EXPECT_EQ(owner->pending_pushes(), 0u);
  expect_nothing_held(*fetching);
}

TEST_F(PushModeTest, AnotherModelIsRefusedByName) {
  ec::CacheOptions options = push_options();
  options.identity = "model A";
  auto fetching = fetcher(options);
  options.identity = "model B";
  auto owner = producer(options);
  ASSERT_OK(owner->push(order("t1", *fetching, "h1")));
  EXPECT_TRUE(eventually([&] { return owner->pending_pushes() == 0; }));
  const auto failures = owner->take_push_failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_REASON(Reason::kIncompatible, failures[0].why);
  EXPECT_NE(failures[0].why.message().find("model B"), std::string_view::npos);
  EXPECT_NE(failures[0].why.message().find("model A"), std::string_view::npos);
  EXPECT_EQ(fetching->consumer().usage().pool_used, 0u);
}

// T05: a transfer that is under way is its writer's; after it the name is free.
TEST_F(PushModeTest, ATransferIsBegunOnceAtATimeAndItsNameIsFreeAfterwards) {
  auto fetching = fetcher(push_options());
  auto owner = producer(push_options());
  ChildProcess child("ec-push-producer");
  (void)ask(child, child_json());
  ASSERT_OK(owner->push(order("7", *fetching, "h")));
  ASSERT_TRUE(reserved(*fetching, 1));
  EXPECT_REASON(Reason::kAlreadyExists, owner->push(order("7", *fetching, "h")));
  // The other process is told by the consumer, and cannot end what is not its own.
  ASSERT_EQ(ask(child, fmt::format("push 7 {} h 1048576", fetching->consumer_zmq())), "ok");
  ASSERT_EQ(ask(child, "save h 9 1048576"), "ok");
  EXPECT_TRUE(eventually([&] { return ask(child, "failures") == "already_exists"; }));
  EXPECT_EQ(fetching->desk()->usage().reservations, 1u);
  ASSERT_OK(save(*owner, "h", 1));
  for (int turn = 0; turn < 50; ++turn) {
    fetching->expect("h", "7");
    ASSERT_TRUE(ends(*fetching, "h", ec::FetchState::kReady)) << turn;
    if (turn % 10 == 0) expect_bytes(*fetching, "h", 1);
    fetching->handed_on("h");
    ASSERT_TRUE(eventually([&] { return owner->pending_pushes() == 0; })) << turn;
    ASSERT_OK(owner->push(order("7", *fetching, "h"))) << turn;
  }
  EXPECT_EQ(owner->take_push_failures().size(), 1u) << "the second start";
}

// T06: whatever ends a transfer, its room comes back.
TEST_F(PushModeTest, ThousandsThatAreAnnouncedAtOnceAllArrive) {
  auto fetching = fetcher(push_options());
  auto owner = producer(push_options());
  constexpr uint64_t kCount = 2500;
  constexpr uint64_t kBytes = 4096;
  std::vector<std::string> names;
  for (uint64_t i = 0; i < kCount; ++i) names.push_back(fmt::format("many-{}", i));
  for (const std::string& name : names) {
    fetching->expect(name, name);
    ASSERT_OK(owner->push(order(name, *fetching, name, kBytes)));
  }
  for (const std::string& name : names) ASSERT_OK(save(*owner, name, 1, kBytes));
  EXPECT_TRUE(eventually([&] { return fetching->usage().ready == kCount; }, 60s))
      << fetching->usage().ready;
  EXPECT_TRUE(owner->take_push_failures().empty());
  for (const std::string& name : names) fetching->drop(name);
  expect_nothing_held(*fetching);
}

// Their ends are told on a thread of the desk.
TEST_F(PushModeTest, TransfersThatEndWhileTheyAreDroppedHarmNobody) {
  auto fetching = fetcher(push_options());
  auto owner = producer(push_options());
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) names.push_back(fmt::format("race-{}", i));
  for (const std::string& name : names) {
    fetching->expect(name, name);
    fetching->expect(name, name + "-too");
    ASSERT_OK(owner->push(order(name, *fetching, name, 4096)));
  }
  ASSERT_TRUE(reserved(*fetching, names.size()));
  std::thread ending([&] {
    for (const std::string& name : names) owner->cancel_push(name);
  });
  for (const std::string& name : names) fetching->drop(name);
  ending.join();
  expect_nothing_held(*fetching);
}

TEST_F(PushModeTest, HoweverTransfersEndTheirRoomComesBack) {
  ec::CacheOptions options = push_options();
  options.reservation_ttl = 2s;
  auto fetching = fetcher(options);
  auto owner = producer(options);
  constexpr uint64_t kBytes = 65'536;
  constexpr int kTurns = 30;
  for (int way = 0; way < 5; ++way) {
    for (int turn = 0; turn < kTurns; ++turn) {
      const std::string name = fmt::format("{}-{}", way, turn);
      fetching->expect(name, name);
      if (way == 0) fetching->drop(name);  // Before it is announced.
      ASSERT_OK(owner->push(order(name, *fetching, name, kBytes)));
      if (way == 1) fetching->drop(name);      // Somewhere under way.
      if (way == 2) owner->cancel_push(name);  // By its producer.
      if (way != 2) {
        ASSERT_OK(save(*owner, name, 1, kBytes));
      }
      if (way == 3) {
        ASSERT_TRUE(ends(*fetching, name, ec::FetchState::kReady));
      }
      fetching->drop(name);  // Once it is there, or while it is read; twice is no harm.
      fetching->drop(name);
    }
    EXPECT_TRUE(eventually([&] { return owner->pending_pushes() == 0; })) << way;
    expect_nothing_held(*fetching);
  }
  ChildProcess child("ec-push-producer");
  (void)ask(child, child_json());
  for (int turn = 0; turn < kTurns; ++turn) {
    (void)ask(child, fmt::format("push k{} {} k{} 65536", turn, fetching->consumer_zmq(), turn));
  }
  ASSERT_TRUE(reserved(*fetching, kTurns));
  child.kill_hard();
  expect_nothing_held(*fetching);
}

// T12: more than there is room for; what nobody waits for gives way, and nothing else does.
TEST_F(PushModeTest, APoolIsNeverFullerThanItIsAndWhatIsWantedStays) {
  auto fetching = fetcher(push_options(8 * kEcMib));
  auto owner = producer(push_options(32 * kEcMib));
  fetching->expect("kept", "kept");
  ASSERT_OK(owner->push(order("kept", *fetching, "kept")));
  ASSERT_OK(save(*owner, "kept", 99));
  ASSERT_TRUE(ends(*fetching, "kept", ec::FetchState::kReady));
  for (int turn = 0; turn < 20; ++turn) {
    const std::string name = fmt::format("h{}", turn);
    fetching->expect(name, name);
    ASSERT_OK(owner->push(order(name, *fetching, name)));
    ASSERT_OK(save(*owner, name, static_cast<uint64_t>(turn)));
    ASSERT_TRUE(ends(*fetching, name, ec::FetchState::kReady)) << turn;
    if (turn % 2 == 0) expect_bytes(*fetching, name, static_cast<uint64_t>(turn));
    EXPECT_LE(fetching->consumer().usage().pool_used, 8 * kEcMib);
    (turn % 2 == 0) ? fetching->handed_on(name) : fetching->drop(name);
  }
  expect_bytes(*fetching, "kept", 99);
  // What was evicted at both ends comes again.
  EXPECT_TRUE(owner->evict("h0"));
  fetching->expect("h0", "again");
  ASSERT_OK(owner->push(order("again", *fetching, "h0")));
  ASSERT_OK(save(*owner, "h0", 77));
  ASSERT_TRUE(ends(*fetching, "h0", ec::FetchState::kReady));
}

// A consumer in a process of its own, which says where it is.
int push_consumer(Channel& parent) {
  const auto start = parent.receive_text();
  if (!start.has_value()) return 1;
  const config::ConfigNode extra =
      must(config::parse_config(*start, config::ConfigSyntax::kJson, "t"));
  auto fetching = must(ec::Fetcher::create(must(ec::load_cache_options(extra)), 1));
  parent.send(fetching->consumer_zmq());
  (void)parent.receive_text(60s);
  return 0;
}
const RoleRegistration kPushConsumer("ec-push-consumer", push_consumer);

// E8: a consumer that stands still costs its own pushes, and those end.
TEST_F(PushModeTest, AConsumerThatStopsOrDiesFailsItsPushesAndNoOthers) {
  auto fetching = fetcher(push_options());
  ec::CacheOptions options = push_options();
  options.space_timeout = 1s;
  auto owner = producer(options);
  ChildProcess still("ec-push-consumer");
  ChildProcess dying("ec-push-consumer");
  const std::string keys = R"("reservation_ttl": "600ms")";
  const std::string stopped_at = ask(still, child_json(keys));
  const std::string dying_at = ask(dying, child_json(keys));
  ASSERT_OK(owner->push({"s", stopped_at, "h", info_of(kEcMib)}));
  ASSERT_OK(owner->push({"d", dying_at, "h", info_of(kEcMib)}));
  ASSERT_OK(owner->push(order("t", *fetching, "h")));
  ASSERT_TRUE(reserved(*fetching, 1));
  still.stop();
  dying.kill_hard();
  EXPECT_TRUE(eventually([&] { return owner->pending_pushes() == 1; }));
  EXPECT_EQ(owner->take_push_failures().size(), 2u);
  ASSERT_OK(save(*owner, "h", 4));
  fetching->expect("h", "t");
  ASSERT_TRUE(ends(*fetching, "h", ec::FetchState::kReady));
  expect_bytes(*fetching, "h", 4);
  still.resume();
}

TEST_F(PushModeTest, OnlyWhoHoldsTheSecretIsAnswered) {
  const SecretFiles files;
  ec::CacheOptions options = push_options();
  options.control_timeout = 500ms;
  options.secret_file = files.write("right", std::string(32, 'a'));
  auto fetching = fetcher(options);
  auto owner = producer(options);
  ASSERT_OK(owner->push(order("t1", *fetching, "h")));
  ASSERT_OK(save(*owner, "h", 4));
  fetching->expect("h", "t1");
  ASSERT_TRUE(ends(*fetching, "h", ec::FetchState::kReady)) << fetching->look("h").why.to_string();
  options.secret_file = files.write("wrong", std::string(32, 'b'));
  auto stranger = producer(options);
  ASSERT_OK(stranger->push(order("t2", *fetching, "h2")));
  EXPECT_TRUE(eventually([&] { return stranger->pending_pushes() == 0; }));
  EXPECT_EQ(stranger->take_push_failures().size(), 1u);
  EXPECT_EQ(fetching->desk()->usage().reservations, 1u);
}

}  // namespace
}  // namespace stagelink::test
