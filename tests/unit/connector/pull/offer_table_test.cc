#include "connector/pull/sender/offer_table.h"

#include <thread>

#include <gtest/gtest.h>

#include "connector/pull/memory/pool.h"

namespace stagelink::pull {
namespace {

using std::chrono::milliseconds;

// An asker that is never spoken to: the table sends nothing.
struct Mute final : Asker {
  bool answer(MessageSpan) noexcept override { return true; }
};

class OfferTableTest : public ::testing::Test {
 protected:
  explicit OfferTableTest(const OfferTable::Limits& limits = {}) : table(limits, room) {}

  // Puts a body that counts in `freed` when it goes.
  uint64_t put(std::string_view key, uint32_t readers = 1, Duration ttl = Duration::zero()) {
    auto body = std::make_shared<OfferBody>();
    body->generation = ++generation;
    body->free = [this] { ++freed; };
    OfferTerms terms{readers, std::nullopt};
    if (ttl > Duration::zero()) terms.ttl = Deadline::in(ttl);
    EXPECT_TRUE(table.put(key, std::move(body), terms, woken, now()).ok());
    return generation;
  }
  std::optional<ClaimOutcome> claim(uint64_t id, std::string_view key, uint64_t wanted = 0,
                                    Duration wait = Duration::zero()) {
    return table.claim(
        {.receiver = receiver, .id = id, .generation = wanted, .key = key, .wait = wait}, asker,
        now());
  }
  Reason reason(uint64_t id, std::string_view key, uint64_t wanted = 0) {
    return claim(id, key, wanted)->reason;
  }
  OfferTable::Now now() const { return Deadline::Clock::now() + skipped; }

  std::shared_ptr<RoomSignal> room = std::make_shared<RoomSignal>();
  OfferTable table;
  std::shared_ptr<Asker> asker = std::make_shared<Mute>();
  InstanceId receiver{1, 2};
  uint64_t generation = 0;
  int freed = 0;
  Duration skipped = Duration::zero();
  OfferTable::Outcomes woken;
};

TEST_F(OfferTableTest, WhoWaitsForRoomIsWokenByTheEndOfAClaimOrOfAnOffer) {
  put("k", 0);
  ASSERT_EQ(reason(1, "k"), Reason::kOk);
  const uint64_t seen = room->count();
  EXPECT_FALSE(room->await(seen, Deadline::in(milliseconds(1)))) << "nothing has ended";
  std::thread waiter(
      [&] { EXPECT_TRUE(room->await(seen, Deadline::in(std::chrono::minutes(1)))); });
  EXPECT_TRUE(table.release(receiver, 1, true));
  waiter.join();
  const uint64_t released = room->count();
  EXPECT_TRUE(table.cleanup("k", 0));
  EXPECT_TRUE(room->await(released, Deadline::in(Duration::zero())));
}

TEST(PoolTest, WhoWaitsForRoomIsWokenOnceAPieceIsFree) {
  std::vector<std::byte> memory(4096);
  const auto pool = *Pool::create(memory, nullptr);
  const auto all = [&] {
    return pool->allocate(3000, Deadline::in(Duration::zero()), [] { return Status(); });
  };
  std::optional<Piece> held(*all());
  const uint64_t seen = pool->room()->count();
  ASSERT_EQ(all().status().reason(), Reason::kNoSpace);
  std::thread waiter([&] {
    EXPECT_TRUE(pool->room()->await(seen, Deadline::in(std::chrono::minutes(1))));
    EXPECT_TRUE(all().ok());
  });
  held.reset();
  waiter.join();
}

TEST_F(OfferTableTest, AnOfferGoesWithItsLastReader) {
  put("k", 2);
  EXPECT_EQ(reason(1, "k"), Reason::kOk);
  EXPECT_EQ(reason(2, "k"), Reason::kOk);
  EXPECT_TRUE(table.release(receiver, 1, true));
  EXPECT_EQ(table.usage().offered, 1u);
  EXPECT_TRUE(table.release(receiver, 2, true));
  EXPECT_EQ(table.usage().offered, 0u);
  EXPECT_EQ(freed, 1);
  EXPECT_EQ(table.usage().ended[static_cast<size_t>(OfferEnd::kConsumed)], 1u);
  EXPECT_EQ(reason(3, "k"), Reason::kNotFound);
}

TEST_F(OfferTableTest, AReleaseIsIdempotentAndOneThatGivesUpCountsForNothing) {
  put("k");
  EXPECT_EQ(reason(1, "k"), Reason::kOk);
  EXPECT_TRUE(table.release(receiver, 1, false));
  EXPECT_FALSE(table.release(receiver, 1, true));
  EXPECT_EQ(table.usage().offered, 1u);
  EXPECT_EQ(reason(2, "k"), Reason::kOk);
  EXPECT_FALSE(table.release({9, 9}, 2, true));  // Somebody else's.
  EXPECT_TRUE(table.release(receiver, 2, true));
  EXPECT_EQ(freed, 1);
}

TEST_F(OfferTableTest, WithoutANumberOfReadersItStays) {
  put("k", 0);
  for (uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(reason(id, "k"), Reason::kOk);
    EXPECT_TRUE(table.release(receiver, id, true));
  }
  EXPECT_EQ(table.usage().offered, 1u);
}

TEST_F(OfferTableTest, APutOfTheSameKeyLeavesTheOldBytesToTheirReaders) {
  const uint64_t old = put("k");
  EXPECT_EQ(reason(1, "k"), Reason::kOk);
  const uint64_t current = put("k");
  EXPECT_EQ(freed, 0);
  EXPECT_EQ(reason(2, "k", old), Reason::kSuperseded);
  EXPECT_EQ(claim(3, "k", current)->offer->generation, current);
  // The old one's last reader frees it and leaves the new one.
  EXPECT_TRUE(table.release(receiver, 1, true));
  EXPECT_EQ(freed, 1);
  EXPECT_EQ(table.usage().offered, 1u);
  put("k");
  put("k");
  EXPECT_EQ(freed, 2);  // Nobody had claimed it.
}

TEST_F(OfferTableTest, AGenerationThatIsGoneNeverWaits) {
  const uint64_t old = put("k");
  EXPECT_TRUE(table.cleanup("k", 0));
  EXPECT_EQ(freed, 1);
  EXPECT_EQ(claim(1, "k", old, std::chrono::seconds(5))->reason, Reason::kSuperseded);
}

TEST_F(OfferTableTest, CleanupHitsOneGenerationAndNeverAReader) {
  const uint64_t generation_of = put("k");
  EXPECT_EQ(reason(1, "k"), Reason::kOk);
  EXPECT_FALSE(table.cleanup("k", generation_of + 1));
  EXPECT_FALSE(table.cleanup("other", 0));
  EXPECT_TRUE(table.cleanup("k", generation_of));
  EXPECT_EQ(freed, 0);
  EXPECT_EQ(reason(2, "k"), Reason::kNotFound);
  EXPECT_TRUE(table.release(receiver, 1, false));
  EXPECT_EQ(freed, 1);
}

TEST_F(OfferTableTest, TimeRetiresOffersButNotUnderAClaim) {
  put("read", 1, milliseconds(1));
  put("unread", 1, milliseconds(1));
  put("for ever", 1);
  EXPECT_EQ(reason(1, "read"), Reason::kOk);
  const Deadline later = Deadline::in(milliseconds(2));
  while (!later.passed()) {
  }
  table.expire(woken, now());
  EXPECT_EQ(table.usage().ended[static_cast<size_t>(OfferEnd::kExpired)], 2u);
  EXPECT_EQ(table.usage().offered, 1u);
  EXPECT_EQ(freed, 1);
  EXPECT_TRUE(table.release(receiver, 1, true));
  EXPECT_EQ(freed, 2);
}

TEST_F(OfferTableTest, AClaimEndsAtItsTimeAndTheOfferIsThereAgain) {
  put("k");
  EXPECT_EQ(reason(1, "k"), Reason::kOk);
  skipped = std::chrono::seconds(59);
  table.expire(woken, now());
  EXPECT_EQ(table.usage().claims, 1u);
  skipped = std::chrono::seconds(61);
  EXPECT_LE(table.next_due(), now());
  table.expire(woken, now());
  EXPECT_EQ(table.usage().claims_expired, 1u);
  EXPECT_FALSE(table.release(receiver, 1, true));
  EXPECT_EQ(reason(2, "k"), Reason::kOk);
}

TEST_F(OfferTableTest, AClaimThatWaitsIsGivenThePut) {
  EXPECT_FALSE(claim(1, "k", 0, std::chrono::seconds(5)).has_value());
  EXPECT_FALSE(claim(2, "k", 0, std::chrono::seconds(5)).has_value());
  EXPECT_TRUE(table.release(receiver, 2, false));  // Withdrawn.
  EXPECT_EQ(table.usage().waiting, 1u);
  const uint64_t current = put("k");
  ASSERT_EQ(woken.size(), 1u);
  EXPECT_EQ(woken[0].id, 1u);
  EXPECT_EQ(woken[0].offer->generation, current);
  EXPECT_EQ(table.usage().claims, 1u);
  EXPECT_EQ(table.usage().waiting, 0u);
}

TEST_F(OfferTableTest, AClaimThatWaitsInVainIsToldSo) {
  EXPECT_FALSE(claim(1, "k", 0, std::chrono::seconds(5)).has_value());
  skipped = std::chrono::seconds(4);
  table.expire(woken, now());
  EXPECT_TRUE(woken.empty());
  skipped = std::chrono::seconds(6);
  table.expire(woken, now());
  ASSERT_EQ(woken.size(), 1u);
  EXPECT_EQ(woken[0].reason, Reason::kNotFound);
  EXPECT_EQ(table.next_due(), OfferTable::Now::max());
}

TEST_F(OfferTableTest, WhoeverGoesLosesItsClaimsAndPlaces) {
  put("k");
  EXPECT_EQ(reason(1, "k"), Reason::kOk);
  EXPECT_FALSE(claim(2, "later", 0, std::chrono::seconds(5)).has_value());
  table.drop(Mute());
  EXPECT_EQ(table.usage().claims, 1u);
  table.drop(*asker);
  EXPECT_EQ(table.usage().claims, 0u);
  EXPECT_EQ(table.usage().waiting, 0u);
  EXPECT_EQ(table.usage().claims_dropped, 1u);
  EXPECT_EQ(table.usage().offered, 1u);
}

TEST_F(OfferTableTest, ByKeyAloneTheOldestClaimOfThatReceiverEnds) {
  put("k");
  EXPECT_EQ(reason(1, "k"), Reason::kOk);
  put("k");
  EXPECT_EQ(reason(2, "k"), Reason::kOk);
  EXPECT_FALSE(table.release_by_key({5, 5}, "k"));
  EXPECT_FALSE(table.release_by_key(receiver, "other"));
  EXPECT_TRUE(table.release_by_key(receiver, "k"));
  EXPECT_EQ(freed, 1);
  EXPECT_EQ(table.usage().offered, 1u);
  EXPECT_TRUE(table.release_by_key(receiver, "k"));
  EXPECT_EQ(table.usage().offered, 0u);
}

TEST_F(OfferTableTest, CloseTakesNoClaimAwayAndLetsNoneIn) {
  put("k");
  EXPECT_EQ(reason(1, "k"), Reason::kOk);
  EXPECT_FALSE(claim(2, "later", 0, std::chrono::seconds(5)).has_value());
  table.close(woken);
  ASSERT_EQ(woken.size(), 1u);
  EXPECT_EQ(woken[0].reason, Reason::kClosed);
  EXPECT_EQ(reason(3, "k"), Reason::kClosed);
  OfferTable::Outcomes none;
  EXPECT_EQ(table.put("new", std::make_shared<OfferBody>(), {}, none, now()).reason(),
            Reason::kClosed);
  EXPECT_EQ(table.wait_idle(Deadline::in(Duration::zero())), 1u);
  EXPECT_EQ(freed, 0);
  table.drop_all();
  EXPECT_EQ(freed, 1);
  EXPECT_EQ(table.wait_idle(Deadline::in(Duration::zero())), 0u);
}

class OfferTableBoundsTest : public OfferTableTest {
 protected:
  OfferTableBoundsTest()
      : OfferTableTest({.max_waiting = 2, .claims_of_offer = 2, .claims_of_receiver = 3}) {}
};

TEST_F(OfferTableBoundsTest, WhatIsTooManyIsBusy) {
  put("a", 0);
  put("b", 0);
  EXPECT_EQ(reason(1, "a"), Reason::kOk);
  EXPECT_EQ(reason(1, "a"), Reason::kAlreadyExists);
  EXPECT_EQ(reason(2, "a"), Reason::kOk);
  EXPECT_EQ(reason(3, "a"), Reason::kBusy);
  EXPECT_EQ(reason(3, "b"), Reason::kOk);
  EXPECT_EQ(reason(4, "b"), Reason::kBusy);  // Of this receiver.
  receiver = {7, 7};
  EXPECT_EQ(reason(4, "b"), Reason::kOk);
  EXPECT_FALSE(claim(5, "c", 0, milliseconds(5)).has_value());
  EXPECT_FALSE(claim(6, "c", 0, milliseconds(5)).has_value());
  EXPECT_EQ(claim(7, "c", 0, milliseconds(5))->reason, Reason::kBusy);
}

}  // namespace
}  // namespace stagelink::pull
