#include "connector/moriio/wrapper/transfer_table.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace stagelink::moriio {
namespace {

TableOptions producer(uint32_t tp_size = 1) {
  TableOptions options;
  options.role = Role::kProducer;
  options.tp_size = tp_size;
  return options;
}

TableOptions consumer(uint32_t tp_size = 1) {
  TableOptions options = producer(tp_size);
  options.role = Role::kConsumer;
  return options;
}

RemoteBlocks blocks(std::string id, std::vector<int64_t> ids = {4, 5}) {
  return {"request", std::move(id), std::move(ids), 0, {}};
}

WriteDone done_by(const std::string& id, std::optional<uint32_t> rank, uint32_t writes = 1) {
  WriteDone message{id, {}};
  message.extras.tp_rank = rank;
  if (writes > 1) message.extras.writes = writes;
  return message;
}

Release release_by(const std::string& id, std::optional<uint32_t> rank, uint32_t tp_size) {
  Release message{id, tp_size, {}};
  message.extras.tp_rank = rank;
  return message;
}

// "kind id reason", in order.
std::vector<std::string> told(TransferTable& table) {
  std::vector<std::string> lines;
  for (const TransferEvent& event : table.take_events()) {
    lines.push_back(fmt::format("{} {} {}", event_name(event.kind), event.transfer_id,
                                reason_name(event.outcome.reason())));
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(TransferTableTest, AnEmptyListOfBlocksIsAnAllocation) {
  TransferTable table(producer());
  ASSERT_TRUE(table.expect("tx", {}).ok());
  table.accept(blocks("tx", {}));
  const auto allocation = table.allocation("tx");
  ASSERT_NE(allocation, nullptr);
  EXPECT_TRUE(allocation->block_ids.empty());
}

TEST(TransferTableTest, MessagesThatComeEarlyAreActedUponWhenTheTransferIsExpected) {
  TransferTable table(producer());
  table.accept(blocks("tx"));
  EXPECT_EQ(table.allocation("tx"), nullptr);
  table.accept(release_by("tx", {}, 1));
  EXPECT_EQ(told(table), Lines{});
  ASSERT_TRUE(table.expect("tx", {}).ok());
  EXPECT_EQ(told(table), Lines{"sent tx ok"});
}

TEST(TransferTableTest, LateBlocksOfATransferThatHasEndedAreIgnored) {
  TransferTable table(producer());
  ASSERT_TRUE(table.expect("tx", {}).ok());
  EXPECT_TRUE(table.end(EventKind::kSent, "tx", {}));
  table.accept(blocks("tx"));
  EXPECT_EQ(table.allocation("tx"), nullptr);
  EXPECT_EQ(table.rejects().of(Reject::kLate), 1U);
  EXPECT_EQ(table.expect("tx", {}).code(), Code::kAlreadyExists);
}

TEST(TransferTableTest, AnotherLifeOfThePeerMayUseATransferIdAgain) {
  TransferTable table(producer());
  RemoteBlocks first = blocks("tx");
  first.extras.incarnation = "life one";
  ASSERT_TRUE(table.expect("tx", {}).ok());
  table.accept(first);
  EXPECT_TRUE(table.end(EventKind::kSent, "tx", {}));
  table.accept(first);
  EXPECT_EQ(table.rejects().of(Reject::kLate), 1U);
  RemoteBlocks second = blocks("tx", {7});
  second.extras.incarnation = "life two";
  table.accept(second);
  ASSERT_TRUE(table.expect("tx", {}).ok());
  ASSERT_NE(table.allocation("tx"), nullptr);
  EXPECT_EQ(table.allocation("tx")->block_ids, std::vector<int64_t>{7});
}

TEST(TransferTableTest, BlocksMayBeNamedAnewUntilTheyAreBeingWritten) {
  TransferTable table(producer());
  ASSERT_TRUE(table.expect("tx", {}).ok());
  table.accept(blocks("tx", {1}));
  table.accept(blocks("tx", {2}));
  const auto writing = table.begin_writing("tx");
  ASSERT_NE(writing, nullptr);
  EXPECT_EQ(writing->block_ids, std::vector<int64_t>{2});
  table.accept(blocks("tx", {3}));
  table.accept(blocks("tx", {2}));
  EXPECT_EQ(table.allocation("tx")->block_ids, std::vector<int64_t>{2});
  EXPECT_EQ(table.rejects().of(Reject::kWriting), 1U);
  EXPECT_EQ(table.rejects().of(Reject::kDuplicate), 1U);
}

TEST(TransferTableTest, BlocksAreFreeWhenEveryReaderHasReleasedThem) {
  TransferTable table(producer(2));
  ASSERT_TRUE(table.expect("tx", {}).ok());
  table.accept(release_by("tx", 4, 8));
  table.accept(release_by("tx", 5, 8));
  table.accept(release_by("tx", 5, 8));  // Twice the same rank is one.
  table.accept(release_by("tx", 6, 8));
  EXPECT_EQ(told(table), Lines{});
  EXPECT_EQ(table.rejects().of(Reject::kDuplicate), 1U);
  table.accept(release_by("tx", 7, 8));
  EXPECT_EQ(told(table), Lines{"sent tx ok"});
}

TEST(TransferTableTest, ReadersThatDoNotSayWhoTheyAreAreCountedByMessage) {
  TransferTable table(producer(1));
  ASSERT_TRUE(table.expect("tx", {}).ok());
  table.accept(release_by("tx", {}, 2));
  EXPECT_EQ(told(table), Lines{});
  table.accept(release_by("tx", {}, 2));
  EXPECT_EQ(told(table), Lines{"sent tx ok"});
}

TEST(TransferTableTest, AReleaseOfSizesThatDoNotDivideIsRefused) {
  TransferTable table(producer(2));
  ASSERT_TRUE(table.expect("tx", {}).ok());
  table.accept(release_by("tx", {}, 3));
  EXPECT_EQ(table.rejects().of(Reject::kBadField), 1U);
  EXPECT_EQ(told(table), Lines{});
}

TEST(TransferTableTest, DoneMeansThatEveryWriterHasReported) {
  TransferTable table(consumer());
  ASSERT_TRUE(table.expect("tx", {.messages = 3}).ok());
  table.accept(done_by("tx", 0));
  table.accept(done_by("tx", 0));  // Again for part 0: not part 1.
  table.accept(done_by("tx", 1));
  EXPECT_EQ(told(table), Lines{});
  table.accept(done_by("tx", 2));
  EXPECT_EQ(told(table), Lines{"received tx ok"});
  EXPECT_EQ(table.rejects().of(Reject::kDuplicate), 1U);
}

TEST(TransferTableTest, AFailureOfOneWriterIsTheEndAndNeverASuccess) {
  TransferTable table(consumer());
  ASSERT_TRUE(table.expect("tx", {.messages = 2}).ok());
  table.accept(done_by("tx", 0));
  WriteFailed failed{"tx", {}};
  failed.extras.status = "timed_out: the blocks are not written";
  table.accept(failed);
  table.accept(done_by("tx", 1));
  EXPECT_EQ(told(table), Lines{"received tx timed_out"});
}

TEST(TransferTableTest, AWrongTokenEndsNothing) {
  TransferTable table(consumer());
  ASSERT_TRUE(table.expect("tx", {.token = "secret"}).ok());
  WriteDone forged = done_by("tx", {});
  forged.extras.token = "guess!";
  table.accept(forged);
  EXPECT_EQ(told(table), Lines{});
  EXPECT_EQ(table.rejects().of(Reject::kToken), 1U);
  WriteDone right = done_by("tx", {});
  right.extras.token = "secret";
  table.accept(right);
  EXPECT_EQ(told(table), Lines{"received tx ok"});
}

TEST(TransferTableTest, AMissingTokenIsRefusedOnlyWhereItIsRequired) {
  TransferTable table(consumer());
  ASSERT_TRUE(table.expect("strict", {.token = "secret", .token_required = true}).ok());
  ASSERT_TRUE(table.expect("of 0.32", {.token = "secret"}).ok());
  table.accept(done_by("strict", {}));
  table.accept(done_by("of 0.32", {}));
  EXPECT_EQ(told(table), Lines{"received of 0.32 ok"});
  EXPECT_EQ(table.rejects().of(Reject::kToken), 1U);
}

TEST(TransferTableTest, ATokenIsAskedOfMessagesThatCameEarly) {
  TransferTable table(producer());
  Release forged = release_by("tx", {}, 1);
  forged.extras.token = "guess!";
  table.accept(forged);
  ASSERT_TRUE(table.expect("tx", {.token = "secret"}).ok());
  EXPECT_EQ(told(table), Lines{});
  EXPECT_EQ(table.rejects().of(Reject::kToken), 1U);
}

TEST(TransferTableTest, MessagesForTheOtherSideAreCountedAndDropped) {
  TransferTable produces(producer());
  produces.accept(done_by("tx", {}));
  EXPECT_EQ(produces.rejects().of(Reject::kWrongRole), 1U);
  TransferTable consumes(consumer());
  consumes.accept(blocks("tx"));
  consumes.accept(release_by("tx", {}, 1));
  EXPECT_EQ(consumes.rejects().of(Reject::kWrongRole), 2U);
  EXPECT_EQ(produces.size() + consumes.size(), 0U);
}

TEST(TransferTableTest, StrangersNeverFillTheTable) {
  TableOptions options = producer();
  options.max_unmatched = 8;
  TransferTable table(options);
  ASSERT_TRUE(table.expect("known", {}).ok());
  for (int i = 0; i < 8; ++i) table.accept(release_by(fmt::format("stranger {}", i), {}, 1));
  EXPECT_EQ(table.rejects().of(Reject::kFull), 0U);
  EXPECT_EQ(table.size(), 9U);
  table.accept(release_by("one more", {}, 1));
  EXPECT_EQ(table.rejects().of(Reject::kFull), 1U);
  EXPECT_EQ(table.size(), 9U);
  table.accept(release_by("known", {}, 1));
  EXPECT_EQ(told(table), Lines{"sent known ok"});
}

TEST(TransferTableTest, WhatNobodyAsksForExpires) {
  TableOptions options = producer();
  options.unmatched_timeout = Duration(1);
  TransferTable table(options);
  table.accept(release_by("stranger", {}, 1));
  EXPECT_EQ(told(table), Lines{});  // A look is enough.
  EXPECT_EQ(table.size(), 0U);
  EXPECT_EQ(table.rejects().of(Reject::kExpired), 1U);
}

TEST(TransferTableTest, NoMoreTransfersAreExpectedThanThereIsRoomFor) {
  TableOptions options = producer();
  options.max_transfers = 2;
  TransferTable table(options);
  EXPECT_TRUE(table.expect("a", {}).ok());
  EXPECT_TRUE(table.expect("b", {}).ok());
  EXPECT_EQ(table.expect("c", {}).reason(), Reason::kTooManyTransfers);
  EXPECT_TRUE(table.end(EventKind::kSent, "a", {}));
  EXPECT_TRUE(table.expect("c", {}).ok());
}

TEST(TransferTableTest, EndsAreRememberedUpToABound) {
  TableOptions options = producer();
  options.max_ended = 2;
  TransferTable table(options);
  for (const char* const id : {"a", "b", "c"}) table.mark_ended(id);
  EXPECT_FALSE(table.ended("a"));
  EXPECT_TRUE(table.ended("b"));
  EXPECT_TRUE(table.ended("c"));
}

TEST(TransferTableTest, ADeadlineIsToldOnceAndEndsNothing) {
  TransferTable table(consumer());
  ASSERT_TRUE(table.expect("tx", {.timeout = Duration(1)}).ok());
  EXPECT_EQ(told(table), Lines{"overdue tx ok"});
  EXPECT_EQ(told(table), Lines{});
  table.accept(done_by("tx", {}));
  EXPECT_EQ(told(table), Lines{"received tx ok"});
}

TEST(TransferTableTest, ManyRenewalsAreOneEvent) {
  TransferTable table(producer());
  ASSERT_TRUE(table.expect("tx", {}).ok());
  table.accept(Renew{"tx", {}});
  table.accept(Renew{"tx", {}});
  table.accept(Renew{"unknown", {}});
  EXPECT_EQ(told(table), Lines{"renewed tx ok"});
  table.accept(Renew{"tx", {}});
  EXPECT_EQ(told(table), Lines{"renewed tx ok"});
}

// Finish, abort and expire in every order, each twice, from two threads: one end, one event.
TEST(TransferTableTest, OfAllEndsOfOneTransferTheFirstCounts) {
  constexpr int kIds = 1000;
  std::vector<int> order = {0, 1, 2};
  do {
    TransferTable table(producer());
    const Status outcomes[] = {{}, {Reason::kCancelled, "abort"}, {Reason::kTimedOut, "expire"}};
    const auto end_all = [&] {
      for (int id = 0; id < kIds; ++id) {
        for (const int which : order) {
          for (int twice = 0; twice < 2; ++twice) {
            table.end(EventKind::kSent, fmt::format("tx-{}", id), outcomes[which]);
          }
        }
      }
    };
    std::thread other(end_all);
    end_all();
    other.join();
    Lines ids;
    for (const TransferEvent& event : table.take_events()) ids.push_back(event.transfer_id);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids.size(), size_t{kIds});
    EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
    EXPECT_EQ(table.rejects().of(Reject::kDuplicate), uint64_t{kIds} * 11);
  } while (std::next_permutation(order.begin(), order.end()));
}

// Without counting, as vLLM 0.32 wants it.

TEST(RawTableTest, EveryReleaseIsAnAcknowledgement) {
  TransferTable table(producer(0));
  table.accept(release_by("tx", {}, 8));
  table.accept(release_by("tx", {}, 8));
  table.accept(LegacyId{"old"});
  const std::vector<TransferAck> expected = {{"tx", 8}, {"tx", 8}, {"old", 1}};
  EXPECT_EQ(table.take_acks(), expected);
  EXPECT_TRUE(table.take_acks().empty());
  EXPECT_TRUE(table.ended("tx"));
  table.accept(blocks("tx"));
  EXPECT_EQ(table.allocation("tx"), nullptr);
}

TEST(RawTableTest, AcknowledgementsThatNobodyTakesAreBounded) {
  TableOptions options = producer(0);
  options.max_queued = 3;
  TransferTable table(options);
  for (int i = 0; i < 5; ++i) table.accept(LegacyId{fmt::format("id {}", i)});
  const std::vector<TransferAck> expected = {{"id 2", 1}, {"id 3", 1}, {"id 4", 1}};
  EXPECT_EQ(table.take_acks(), expected);
  EXPECT_EQ(table.rejects().of(Reject::kFull), 2U);
}

TEST(RawTableTest, ACompletionIsToldOnce) {
  TransferTable table(consumer(0));
  table.accept(done_by("tx", {}));
  table.accept(done_by("tx", {}));
  table.accept(LegacyId{"cmpl-1"});
  const Lines expected = {"tx", "cmpl-1"};
  EXPECT_EQ(table.take_completions(), expected);
}

TEST(RawTableTest, BlocksWaitForTheWriterUntilTheyExpire) {
  TableOptions options = producer(0);
  options.unmatched_timeout = Duration(1);
  TransferTable table(options);
  table.accept(blocks("written"));
  ASSERT_NE(table.begin_writing("written"), nullptr);
  table.accept(blocks("forgotten"));
  EXPECT_TRUE(table.take_acks().empty());
  EXPECT_EQ(table.allocated(), Lines{"written"});
}

}  // namespace
}  // namespace stagelink::moriio
