// Reservations: who may do what with them, and what ends them.

#include "connector/encoder_cache/push/reservation_table.h"

#include <map>

#include <gtest/gtest.h>

namespace stagelink::encoder_cache {
namespace {

using namespace std::chrono_literals;
using State = Arrival::State;
using Time = ReservationTable::Time;

class ReservationTableTest : public testing::Test {
 protected:
  static constexpr size_t kMost = 8;
  static EmbeddingInfo info(uint64_t rows = 4) { return {rows * 32, {rows, 8}, "float32"}; }

  Result<Reserved> reserve(const std::string& transfer, const std::string& hash,
                           std::optional<Ticket> ticket = std::nullopt, uint64_t rows = 4) {
    std::optional<Result<Reserved>> answer;
    table_.reserve(
        {transfer, hash, info(rows), "", std::nullopt, ticket},
        [&answers = answers_, transfer](const Result<Reserved>& result) {
          answers.insert_or_assign(transfer, result);
        },
        now_, after_);
    return settle(transfer);
  }
  // Reserved, with room.
  Ticket writer(const std::string& transfer, const std::string& hash) {
    (void)reserve(transfer, hash);
    give_room();
    return answers_.at(transfer)->ticket;
  }
  Result<Completed> complete(const std::string& transfer, const Ticket& ticket) {
    completed_.erase(transfer);
    table_.complete(
        {transfer, ticket, "tcp://127.0.0.1:1", 7},
        [this, transfer](const Result<Completed>& result) {
          completed_.insert_or_assign(transfer, result);
        },
        now_, after_);
    run();
    const auto found = completed_.find(transfer);
    return found == completed_.end() ? Status(Reason::kTimedOut, "no answer yet") : found->second;
  }
  void give_room(Result<pull::Piece> piece = pull::Piece()) {
    const auto arrivals = std::exchange(to_room_, {});
    for (const auto& arrival : arrivals) table_.room_found(arrival, piece, now_, after_);
    run();
  }
  void end_read(const Status& outcome = {}) {
    const auto arrivals = std::exchange(to_read_, {});
    for (const auto& arrival : arrivals) table_.read_ended(arrival, outcome, now_, after_);
    run();
  }
  void pass(Duration time) {
    now_ += time;
    table_.expire(now_, after_);
    run();
  }
  // What the desk does behind each call.
  void run() {
    for (auto& arrival : after_.to_room) to_room_.push_back(arrival);
    for (auto& arrival : after_.to_read) to_read_.push_back(arrival);
    for (const auto& event : after_.events) {
      events_.push_back(event.transfer_id + ":" + std::string(reason_name(event.outcome.reason())));
    }
    const auto answers = std::exchange(after_.answers, {});
    after_ = {};
    for (const auto& answer : answers) answer();
  }
  Result<Reserved> settle(const std::string& transfer) {
    run();
    const auto found = answers_.find(transfer);
    return found == answers_.end() ? Status(Reason::kTimedOut, "no answer yet") : found->second;
  }
  static Reason reason(const auto& result) { return result.status().reason(); }

  Time now_{};
  ReservationTable table_{
      {.reservations = kMost, .ended = 4, .ttl = 30s, .ready_ttl = 60s, .space_timeout = 5s}};
  ReservationTable::Aftermath after_;
  std::vector<std::shared_ptr<Arrival>> to_room_;
  std::vector<std::shared_ptr<Arrival>> to_read_;
  std::vector<std::string> events_;
  std::map<std::string, Result<Reserved>> answers_;
  std::map<std::string, Result<Completed>> completed_;
};

using Events = std::vector<std::string>;

TEST_F(ReservationTableTest, AReservationIsAnsweredWhenThereIsRoomAndReadWhenItsProducerHasMadeIt) {
  EXPECT_EQ(reason(reserve("t1", "h")), Reason::kTimedOut);
  EXPECT_EQ(table_.usage().queued, 1u);
  give_room();
  const Reserved reserved = *answers_.at("t1");
  EXPECT_TRUE(reserved.write && !reserved.ready && !reserved.cached);
  EXPECT_EQ(reserved.nbytes, 128u);
  EXPECT_EQ(reason(complete("t1", reserved.ticket)), Reason::kTimedOut);
  ASSERT_EQ(to_read_.size(), 1u);
  EXPECT_EQ(to_read_[0]->sources.front().generation, 7u);
  end_read();
  EXPECT_TRUE(completed_.at("t1")->completed && completed_.at("t1")->became_ready);
  EXPECT_EQ(events_, Events{"t1:ok"});
  EXPECT_EQ(table_.look("t1").state, PushState::kReady);
  ASSERT_NE(table_.find_ready("h"), nullptr);
  table_.release("t1", after_);
  run();
  EXPECT_EQ(table_.usage().reservations, 0u);
  EXPECT_EQ(table_.usage().idle, 1u);
  EXPECT_EQ(table_.evict(1, after_), 128u);
  EXPECT_EQ(table_.usage().arrivals, 0u);
}

TEST_F(ReservationTableTest, WithoutTheSecretNothingIsCompletedCancelledOrRefreshed) {
  const Ticket ticket = writer("t1", "h");
  Ticket other = ticket;
  for (int which = 0; which < 4; ++which) {
    other = ticket;
    if (which == 0) other = {};
    if (which == 1) other.secret.low ^= 1;
    if (which == 2) other.secret.high ^= uint64_t{1} << 63;
    if (which == 3) other.reservation.low ^= 1;
    EXPECT_EQ(reason(complete("t1", other)), Reason::kAuthentication) << which;
    EXPECT_EQ(reason(table_.cancel({"t1", other}, after_)), Reason::kAuthentication) << which;
    EXPECT_EQ(reason(reserve("t1", "h", other)), Reason::kAuthentication) << which;
  }
  EXPECT_EQ(reason(reserve("t1", "h")), Reason::kAlreadyExists);
  EXPECT_TRUE(events_.empty());
  EXPECT_TRUE(reserve("t1", "h", ticket).ok());
  EXPECT_EQ(reason(reserve("t1", "other", ticket)), Reason::kIncompatible);
  EXPECT_EQ(reason(reserve("t1", "h", ticket, 5)), Reason::kIncompatible);
  EXPECT_EQ(reason(reserve("t2", "h", ticket)), Reason::kNotFound) << "a refresh begins nothing";
  // Whoever cancels what is not there leaves nothing behind that could stop somebody's transfer.
  EXPECT_FALSE(*table_.cancel({"t3", other}, after_));
  EXPECT_EQ(reason(reserve("t3", "h3")), Reason::kTimedOut);
  EXPECT_TRUE(*table_.cancel({"t1", ticket}, after_));
  run();
  EXPECT_EQ(events_, Events{"t1:cancelled"});
}

TEST_F(ReservationTableTest, AFollowersCompleteIsASuccessAndTheFirstThatIsMadeIsRead) {
  const Ticket first = writer("t1", "h");
  const Reserved second = *reserve("t2", "h");
  const Reserved third = *reserve("t3", "h");
  EXPECT_FALSE(second.write || second.ready || third.write);
  EXPECT_EQ(reason(complete("t2", second.ticket)), Reason::kTimedOut);
  EXPECT_EQ(reason(complete("t2", second.ticket)), Reason::kBusy);
  ASSERT_EQ(to_read_.size(), 1u);
  EXPECT_EQ(to_read_[0]->sources.front().transfer_id, "t2");
  EXPECT_EQ(reason(complete("t3", third.ticket)), Reason::kTimedOut);
  end_read();
  EXPECT_TRUE(completed_.at("t3")->completed && !completed_.at("t3")->became_ready);
  EXPECT_EQ(events_, (Events{"t1:ok", "t2:ok", "t3:ok"}));
  // The first one comes late, before and after its request has got the embedding.
  const Completed late = *complete("t1", first);
  EXPECT_TRUE(late.completed && !late.became_ready);
  for (const char* transfer : {"t1", "t2", "t3"}) table_.release(transfer, after_);
  const Completed twice = *complete("t1", first);
  EXPECT_TRUE(twice.completed && !twice.became_ready);
  // One that is here already needs nothing.
  const Reserved cached = *reserve("t4", "h");
  EXPECT_TRUE(cached.cached && cached.ready && !cached.write);
  EXPECT_EQ(events_.back(), "t4:ok");
  EXPECT_EQ(reason(reserve("t5", "h", std::nullopt, 5)), Reason::kIncompatible);
}

TEST_F(ReservationTableTest, WhoFollowsAWriterThatEndsIsTheWriterAtOnce) {
  const Ticket first = writer("t1", "h");
  const Reserved second = *reserve("t2", "h");
  const Reserved third = *reserve("t3", "h");
  EXPECT_TRUE(*table_.cancel({"t1", first}, after_));
  run();
  EXPECT_EQ(events_, Events{"t1:cancelled"});
  EXPECT_EQ(table_.usage().promoted, 1u);
  EXPECT_TRUE(table_.status("t2")->write);
  EXPECT_FALSE(table_.status("t3")->write);
  // A read that fails ends its transfer alone; the next that has been made is read.
  (void)complete("t2", second.ticket);
  (void)complete("t3", third.ticket);
  end_read(Status(Reason::kPeerLost, "gone"));
  EXPECT_EQ(reason(completed_.at("t2")), Reason::kPeerLost);
  EXPECT_EQ(events_.back(), "t2:peer_lost");
  ASSERT_EQ(to_read_.size(), 1u);
  EXPECT_EQ(to_read_[0]->sources.front().transfer_id, "t3");
  end_read();
  EXPECT_EQ(events_.back(), "t3:ok");
}

TEST_F(ReservationTableTest, AWriterWithoutASignOfLifeEndsAndItsNameMayBeUsedAgain) {
  const Ticket ticket = writer("t1", "h");
  (void)reserve("t2", "h");
  pass(29s);
  EXPECT_TRUE(reserve("t1", "h", ticket).ok());
  pass(2s);  // 31 s: t2 has not been refreshed.
  EXPECT_EQ(events_, Events{"t2:expired"});
  EXPECT_EQ(table_.look("t2").state, PushState::kEnded);
  table_.heard("t2");
  EXPECT_EQ(table_.look("t2").state, PushState::kUnknown) << "told once";
  pass(28s - 1ns);
  EXPECT_EQ(table_.usage().reservations, 1u);
  pass(1ns);
  EXPECT_EQ(events_, (Events{"t2:expired", "t1:expired"}));
  EXPECT_EQ(table_.usage().arrivals, 0u) << "its room went back";
  EXPECT_EQ(table_.usage().expired, 2u);
  EXPECT_EQ(reason(complete("t1", ticket)), Reason::kExpired);
  const Ticket again = writer("t1", "h");
  (void)complete("t1", again);
  // What is being read has a deadline of its own.
  pass(300s);
  end_read();
  EXPECT_EQ(events_.back(), "t1:ok");
  pass(60s - 1ns);
  EXPECT_EQ(table_.usage().reservations, 1u);
  pass(1ns);
  EXPECT_EQ(events_.back(), "t1:expired");
  EXPECT_EQ(table_.usage().idle, 1u) << "the embedding stays until its room is wanted";
}

TEST_F(ReservationTableTest, WithoutRoomTheWriterEndsAndItsFollowerAsksAgain) {
  (void)reserve("t1", "h");
  EXPECT_FALSE(reserve("t2", "h")->write);
  give_room(Status(Reason::kNoSpace, "full"));
  EXPECT_EQ(reason(answers_.at("t1")), Reason::kNoSpace);
  EXPECT_EQ(events_, Events{"t1:no_space"});
  EXPECT_EQ(table_.usage().queued, 1u);
  give_room();
  EXPECT_TRUE(table_.status("t2")->write);
  EXPECT_EQ(table_.usage().queued, 0u);
  // Who waits for room gets that of what is idle, as soon as it is.
  const Ticket third = writer("t3", "h3");
  (void)complete("t3", third);
  end_read();
  (void)reserve("t4", "h4");
  table_.release("t3", after_);
  EXPECT_EQ(table_.usage().idle, 0u);
  EXPECT_EQ(table_.find_ready("h3"), nullptr);
}

TEST_F(ReservationTableTest, WhatNobodyWantsIsRefusedUnlessItIsWantedBeforeItsProducerAsks) {
  table_.refuse("t1", after_);
  EXPECT_TRUE(reserve("t1", "h")->cancelled);
  EXPECT_TRUE(to_room_.empty());
  answers_.clear();
  EXPECT_EQ(reason(reserve("t1", "h1")), Reason::kTimedOut) << "once: the name is free again";
  table_.refuse("t2", after_);
  table_.expect("t2");
  EXPECT_EQ(table_.look("t2").state, PushState::kUnknown);
  EXPECT_EQ(reason(reserve("t2", "h")), Reason::kTimedOut);
  table_.refuse("t2", after_);
  run();
  EXPECT_TRUE(answers_.at("t2")->cancelled) << "it waited for room";
  // While it is read, too: what is read has nowhere to go, and what comes of it changes nothing.
  const Ticket ticket = writer("t3", "h");
  (void)complete("t3", ticket);
  table_.refuse("t3", after_);
  run();
  EXPECT_EQ(reason(completed_.at("t3")), Reason::kCancelled);
  EXPECT_TRUE(to_read_[0]->ended.load());
  end_read();
  EXPECT_EQ(table_.usage().arrivals, 1u) << "t1's";
  EXPECT_EQ(table_.usage().reservations, 1u);
  // A request that had it before its producer asked needs it no more.
  table_.release("t4", after_);
  EXPECT_TRUE(reserve("t4", "h")->cancelled);
}

TEST_F(ReservationTableTest, ATransferThatIsGivenUpWhileItIsReadLeavesTheReadToItsFollowers) {
  const Ticket first = writer("t1", "h");
  const Reserved second = *reserve("t2", "h");
  (void)complete("t1", first);
  (void)complete("t2", second.ticket);
  table_.refuse("t1", after_);
  run();
  EXPECT_FALSE(to_read_[0]->ended.load());
  end_read(Status(Reason::kPeerLost, "gone"));
  EXPECT_EQ(events_, Events{"t1:cancelled"}) << "t2 is not to blame";
  end_read();
  EXPECT_EQ(events_.back(), "t2:ok");
}

TEST_F(ReservationTableTest, BothSidesOfEveryBound) {
  for (size_t i = 0; i < kMost; ++i) {
    EXPECT_EQ(reason(reserve("t" + std::to_string(i), "h" + std::to_string(i))), Reason::kTimedOut);
  }
  EXPECT_EQ(reason(reserve("more", "h")), Reason::kBusy);
  give_room();
  for (size_t i = 0; i < 5; ++i) table_.refuse("t" + std::to_string(i), after_);
  EXPECT_EQ(table_.usage().reservations, kMost - 5);
  EXPECT_EQ(table_.usage().ended, 4u);
  EXPECT_EQ(reason(complete("t0", {})), Reason::kNotFound) << "the oldest of five is forgotten";
  EXPECT_EQ(reason(complete("t1", {})), Reason::kCancelled);
  table_.close(after_);
  run();
  EXPECT_EQ(table_.usage().reservations, 0u);
  EXPECT_EQ(table_.usage().arrivals, 0u);
  EXPECT_EQ(events_.back().substr(2), ":closed");
}

}  // namespace
}  // namespace stagelink::encoder_cache
