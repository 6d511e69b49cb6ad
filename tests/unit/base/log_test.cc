#include "base/log.h"

#include <algorithm>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stagelink {
namespace {

class LogTest : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kInfo); }
  void TearDown() override { set_log_level(LogLevel::kWarning); }

  template <typename Action>
  static std::string captured(Action action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
  }
  static long lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }
};

TEST_F(LogTest, LineHoldsTimeLevelNameAndText) {
  const std::string text = captured([] { log(LogLevel::kInfo, "name", "hello"); });
  EXPECT_EQ(text.size(), std::string("2026-11-29T18:00:00.123Z info [name] hello\n").size());
  EXPECT_NE(text.find("Z info [name] hello\n"), std::string::npos);
}

TEST_F(LogTest, LevelDecidesOnBothSides) {
  EXPECT_TRUE(log_enabled(LogLevel::kInfo));
  EXPECT_FALSE(log_enabled(LogLevel::kDebug));
  EXPECT_EQ(captured([] { log(LogLevel::kDebug, "level", "x"); }), "");
  set_log_level(LogLevel::kOff);
  EXPECT_EQ(captured([] { log(LogLevel::kError, "level", "x"); }), "");
}

TEST_F(LogTest, FailureNamesReasonAndCode) {
  const Status failure(Reason::kMemlock, "8 MiB asked, 64 KiB allowed");
  const std::string text = captured([&] { log_failure("alloc", failure); });
  EXPECT_NE(text.find("error [alloc] memlock (limit): 8 MiB asked"), std::string::npos);
  EXPECT_EQ(captured([] { log_failure("alloc", Status()); }), "");
}

TEST_F(LogTest, AFloodFromOneSiteIsHeldBackAfterTwentyLines) {
  const auto flood = [](int count) {
    return captured([count] {
      for (int i = 0; i < count; ++i) log(LogLevel::kInfo, "flood", "again");
    });
  };
  EXPECT_EQ(lines(flood(20)), 20);
  EXPECT_EQ(lines(flood(1000)), 0);
  EXPECT_EQ(lines(captured([] { log(LogLevel::kInfo, "other site", "x"); })), 1);
}

TEST_F(LogTest, ControlCharactersCannotForgeALine) {
  const std::string text = captured([] { log(LogLevel::kInfo, "peer\n", "a\nb\x1b[2Jc\x7f"); });
  EXPECT_EQ(lines(text), 1);
  EXPECT_NE(text.find("[peer\\n] a\\nb\\x1b[2Jc\\x7f\n"), std::string::npos);
}

// What a child leaves behind whose descriptor 2 is `fd`, with `flags`, and which logs until it is
// ended.
int logged_at(int fd, int flags) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // One that waits does not end by itself.
    ::dup3(fd, STDERR_FILENO, flags);
    for (int i = 0; i < 4000; ++i) log(LogLevel::kError, std::to_string(i), std::string(100, 'x'));
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(LogTest, AFileThatTookThePlaceOfAClosedStderrIsNotWrittenTo) {
  const int file = ::memfd_create("data", MFD_CLOEXEC);
  EXPECT_EQ(logged_at(file, O_CLOEXEC), 0);
  struct stat found = {};
  ::fstat(file, &found);
  EXPECT_EQ(found.st_size, 0);
  EXPECT_EQ(logged_at(file, 0), 0);  // One that was put there is a stderr.
  ::fstat(file, &found);
  EXPECT_GT(found.st_size, 0);
  ::close(file);
}

TEST_F(LogTest, APipeThatNobodyReadsHoldsUpNobody) {
  int ends[2] = {};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  EXPECT_EQ(logged_at(ends[1], 0), 0);  // Full after 64 KiB.
  ::close(ends[0]);
  EXPECT_EQ(logged_at(ends[1], 0), 0);  // No signal either.
  ::close(ends[1]);
}

TEST_F(LogTest, AForkedChildCanLog) {
  const std::string text = captured([] {
    const pid_t child = ::fork();
    if (child == 0) {
      log(LogLevel::kInfo, "child", "alive");
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  });
  EXPECT_NE(text.find("[child] alive"), std::string::npos);
}

}  // namespace
}  // namespace stagelink
