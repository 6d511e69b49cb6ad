#include "base/fork_guard.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stagelink {
namespace {

int status_of_child(int (*body)(uint64_t), uint64_t token) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body(token));
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ForkGuardTest, ArmingTwiceGivesOneToken) {
  const uint64_t token = ForkGuard::arm();
  EXPECT_NE(token, 0U);
  EXPECT_EQ(ForkGuard::arm(), token);
  EXPECT_FALSE(ForkGuard::forked(token));
}

TEST(ForkGuardTest, AChildSeesThatTheObjectIsNotItsOwn) {
  const auto body = [](uint64_t token) { return ForkGuard::forked(token) ? 0 : 1; };
  const uint64_t token = ForkGuard::arm();
  EXPECT_EQ(status_of_child(body, token), 0);
  EXPECT_FALSE(ForkGuard::forked(token));
}

TEST(ForkGuardTest, AChildThatArmsAgainKeepsTheTwoApart) {
  const auto body = [](uint64_t token) {
    const uint64_t own = ForkGuard::arm();
    return own != token && !ForkGuard::forked(own) && ForkGuard::forked(token) ? 0 : 1;
  };
  EXPECT_EQ(status_of_child(body, ForkGuard::arm()), 0);
}

TEST(ForkGuardTest, AGrandchildSeesItToo) {
  const auto body = [](uint64_t token) {
    const uint64_t own = ForkGuard::arm();
    const pid_t child = ::fork();
    if (child == 0) ::_exit(ForkGuard::forked(own) && ForkGuard::forked(token) ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    return status == 0 ? 0 : 1;
  };
  EXPECT_EQ(status_of_child(body, ForkGuard::arm()), 0);
}

TEST(ForkGuardTest, TheStatusIsForkedAndNamesTheObject) {
  const Status status = forked_status("Region");
  EXPECT_EQ(status.reason(), Reason::kForked);
  EXPECT_NE(status.message().find("Region"), std::string_view::npos);
}

}  // namespace
}  // namespace stagelink
