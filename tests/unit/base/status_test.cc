#include "stagelink/status.h"

#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "stagelink/result.h"

namespace stagelink {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return Status(Reason::kOverflow, "odd");
  return value / 2;
}

Status check_quarter(int value) {
  SL_ASSIGN(const int first, half(value));
  SL_TRY(half(first).status());
  return {};
}

TEST(StatusTest, SuccessNeedsNoAllocation) {
  const Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_EQ(ok.code(), Code::kOk);
  EXPECT_EQ(ok.scope(), Scope::kNone);
  EXPECT_EQ(ok.message(), "");
  EXPECT_EQ(ok.to_string(), "ok");
  EXPECT_EQ(sizeof(Status), 2 * sizeof(void*));
}

TEST(StatusTest, ReasonOkIsSuccessWhateverTheMessage) {
  EXPECT_TRUE(Status(Reason::kOk, "ignored").ok());
}

TEST(StatusTest, TextNamesReasonThenCodeThenMessage) {
  EXPECT_EQ(Status(Reason::kMemlock, "m").to_string(), "memlock (limit): m");
  EXPECT_EQ(Status(Reason::kLimit, "m").to_string(), "limit: m");
}

TEST(StatusTest, TryAndAssignReturnTheFirstFailure) {
  EXPECT_TRUE(check_quarter(4).ok());
  EXPECT_EQ(check_quarter(3).reason(), Reason::kOverflow);
  EXPECT_EQ(check_quarter(6).message(), "odd");
}

TEST(StatusTest, ReasonNamesAreUnique) {
  std::set<std::string_view> names;
  for (int i = 0; i < kReasonCount; ++i) names.insert(reason_name(static_cast<Reason>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kReasonCount));
}

TEST(StatusTest, EveryCodeHasAReasonOfItsOwnName) {
  std::set<std::string_view> reasons;
  for (int i = 0; i < kReasonCount; ++i) reasons.insert(reason_name(static_cast<Reason>(i)));
  std::set<std::string_view> codes;
  for (int i = 0; i < kCodeCount; ++i) codes.insert(code_name(static_cast<Code>(i)));
  EXPECT_EQ(codes.size(), static_cast<size_t>(kCodeCount));
  for (const auto code : codes) EXPECT_TRUE(reasons.contains(code)) << code;
}

TEST(StatusTest, EachCodeHasTheScopeThatRecoveryNeeds) {
  const std::map<Code, Scope> expected = {
      {Code::kOk, Scope::kNone},
      {Code::kInvalidArgument, Scope::kCall},
      {Code::kPermission, Scope::kCall},
      {Code::kNotFound, Scope::kCall},
      {Code::kAlreadyExists, Scope::kCall},
      {Code::kLimit, Scope::kCall},
      {Code::kTimedOut, Scope::kTransfer},
      {Code::kCancelled, Scope::kTransfer},
      {Code::kBusy, Scope::kTransfer},
      {Code::kNoSpace, Scope::kTransfer},
      {Code::kCorrupt, Scope::kTransfer},
      {Code::kNotRegistered, Scope::kRegion},
      {Code::kSuperseded, Scope::kRegion},
      {Code::kUnreachable, Scope::kPeer},
      {Code::kPeerLost, Scope::kPeer},
      {Code::kIncompatible, Scope::kPeer},
      {Code::kInvalidState, Scope::kEngine},
  };
  ASSERT_EQ(expected.size(), static_cast<size_t>(kCodeCount));
  for (const auto& [code, scope] : expected) EXPECT_EQ(scope_of(code), scope) << code_name(code);
}

TEST(StatusTest, AReasonFromOutsideTheListIsTakenAsASystemFailure) {
  EXPECT_EQ(reason_name(static_cast<Reason>(250)), "system");
  EXPECT_EQ(code_of(static_cast<Reason>(250)), Code::kInvalidState);
}

TEST(ResultDeathTest, ReadingTheValueOfAFailureAborts) {
  Result<int> failed = half(1);
  EXPECT_DEATH(static_cast<void>(*failed), "");
}

}  // namespace
}  // namespace stagelink
