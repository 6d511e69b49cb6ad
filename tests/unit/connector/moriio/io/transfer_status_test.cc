#include "connector/moriio/io/transfer_status.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "connector/moriio/io/in_flight.h"

namespace stagelink::moriio {
namespace {

using namespace std::chrono_literals;

StatusRef with(StatusCode code) {
  auto status = std::make_shared<TransferStatus>();
  status->update(code, code == StatusCode::kSuccess ? "" : "why");
  return status;
}

TEST(TransferStatusTest, BeginsAsInit) {
  TransferStatus status;
  EXPECT_EQ(status.code(), StatusCode::kInit);
  EXPECT_TRUE(status.init());
  EXPECT_FALSE(status.in_progress() || status.succeeded() || status.failed());
  EXPECT_EQ(status.message(), "");
}

TEST(TransferStatusTest, TheFirstErrorStays) {
  TransferStatus status;
  status.update(StatusCode::kInProgress, "");
  status.update(StatusCode::kNotFound, "first");
  status.update(StatusCode::kSuccess, "second");
  status.update(StatusCode::kBadState, "third");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "first");
}

TEST(TransferStatusTest, SuccessCanStillBecomeAnError) {
  TransferStatus status;
  status.update(StatusCode::kSuccess, "");
  status.update(StatusCode::kRdmaOp, "late");
  EXPECT_TRUE(status.failed());
}

TEST(TransferStatusTest, SetCodeAndSetMessageReplaceAnything) {
  TransferStatus status;
  status.update(StatusCode::kBadState, "why");
  status.set_code(StatusCode::kSuccess);
  status.set_message("well");
  EXPECT_TRUE(status.succeeded());
  EXPECT_EQ(status.message(), "well");
}

TEST(TransferStatusTest, OnlyWhatIsInProgressIsWaitedFor) {
  for (const StatusCode code : {StatusCode::kInit, StatusCode::kSuccess, StatusCode::kGpuOp}) {
    EXPECT_EQ(with(code)->wait_for(1h), code);
  }
}

TEST(TransferStatusTest, AWaitEndsAtItsLimitWithTheTransferStillInProgress) {
  const StatusRef status = with(StatusCode::kInProgress);
  EXPECT_EQ(status->wait_for(0ns), StatusCode::kInProgress);
  EXPECT_EQ(status->wait_for(5ms), StatusCode::kInProgress);
}

TEST(TransferStatusTest, EveryWayToSetACodeWakesAWaiter) {
  for (const bool by_update : {true, false}) {
    const StatusRef status = with(StatusCode::kInProgress);
    std::thread waiter([&] { EXPECT_EQ(status->wait(), StatusCode::kBadState); });
    by_update ? status->update(StatusCode::kBadState, "") : status->set_code(StatusCode::kBadState);
    waiter.join();
  }
}

TEST(TransferStatusTest, CancelWithoutATransferChangesNothing) {
  const StatusRef status = with(StatusCode::kSuccess);
  EXPECT_EQ(status->cancel(), StatusCode::kSuccess);
  EXPECT_EQ(status->message(), "");
}

TEST(WaitAllTest, OfNothingIsSuccess) { EXPECT_EQ(wait_all({}, 0ns), StatusCode::kSuccess); }

TEST(WaitAllTest, AnswersByTheWorstOfAll) {
  const StatusRef good = with(StatusCode::kSuccess);
  const StatusRef pending = with(StatusCode::kInProgress);
  const StatusRef fresh = with(StatusCode::kInit);
  const StatusRef bad = with(StatusCode::kRdmaOp);
  const StatusRef worse = with(StatusCode::kNotFound);
  struct Case {
    std::vector<StatusRef> statuses;
    StatusCode expected;
  };
  const Case cases[] = {
      {{good, good}, StatusCode::kSuccess},
      {{good, fresh}, StatusCode::kInit},
      {{good, pending, fresh}, StatusCode::kInProgress},
      {{pending, good, bad}, StatusCode::kRdmaOp},  // Though the first is still in progress.
      {{good, bad, worse}, StatusCode::kRdmaOp},
      {{fresh, worse}, StatusCode::kNotFound},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(wait_all(c.statuses, 0ns), c.expected);
    EXPECT_EQ(wait_all(c.statuses, 3ms), c.expected);
  }
}

TEST(WaitAllTest, ALaterFailureEndsTheWaitForAnEarlierOne) {
  const std::vector<StatusRef> statuses = {with(StatusCode::kInProgress),
                                           with(StatusCode::kInProgress)};
  std::thread waiter([&] { EXPECT_EQ(wait_all(statuses, -1ns), StatusCode::kRdmaOp); });
  statuses[1]->update(StatusCode::kRdmaOp, "cut");
  waiter.join();
}

TEST(WaitAllTest, ReturnsWhenTheLastHasSucceeded) {
  const std::vector<StatusRef> statuses = {with(StatusCode::kInProgress),
                                           with(StatusCode::kInProgress)};
  std::thread waiter([&] { EXPECT_EQ(wait_all(statuses, -1ns), StatusCode::kSuccess); });
  for (const StatusRef& status : statuses) status->update(StatusCode::kSuccess, "");
  waiter.join();
}

TEST(InFlightTest, LetsGoOfWhatIsOver) {
  InFlight in_flight;
  const StatusRef status = with(StatusCode::kSuccess);
  in_flight.add(status);
  EXPECT_EQ(in_flight.size(), 1U);
  EXPECT_EQ(in_flight.sweep(), 1U);
  EXPECT_EQ(in_flight.size(), 0U);
  EXPECT_EQ(status.use_count(), 1);
}

TEST(InFlightTest, NeverKeepsManyThatAreOver) {
  InFlight in_flight;
  for (int i = 0; i < 1000; ++i) {
    in_flight.add(with(StatusCode::kSuccess));
    EXPECT_LT(in_flight.size(), 64U);
  }
}

TEST(MoriCodesTest, EveryReasonHasACodeThatIsAFailure) {
  EXPECT_EQ(status_code_of(Reason::kOk), StatusCode::kSuccess);
  for (int i = 1; i < kReasonCount; ++i) {
    const auto reason = static_cast<Reason>(i);
    EXPECT_TRUE(is_failure(status_code_of(reason))) << reason_name(reason);
    EXPECT_NE(status_message_of(Status(reason, "why")).find("why"), std::string::npos);
  }
}

TEST(MoriCodesTest, WhatCallersOfMoriLookForIsInTheMessages) {
  const auto begins = [](Reason reason, std::string_view text) {
    return status_message_of(Status(reason, "why")).starts_with(text);
  };
  EXPECT_TRUE(begins(Reason::kTooManyTransfers, "SQ full"));
  EXPECT_TRUE(begins(Reason::kOutOfBounds, "length out of range"));
  EXPECT_TRUE(begins(Reason::kOverflow, "length out of range"));
  EXPECT_EQ(status_code_of(Reason::kTooManyTransfers), StatusCode::kRdmaOp);
  EXPECT_EQ(status_code_of(Reason::kOutOfBounds), StatusCode::kInvalidArgs);
  EXPECT_EQ(status_code_of(Reason::kSuperseded), StatusCode::kNotFound);
  EXPECT_EQ(status_code_of(Reason::kClosed), StatusCode::kBadState);
}

}  // namespace
}  // namespace stagelink::moriio
