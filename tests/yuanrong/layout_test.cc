// Our declarations of the client library against the headers of the wheel.
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>
#include <unistd.h>

#include "yuanrong/cluster.h"

namespace stagelink::test {
namespace {

std::string output_of(const std::string& command) {
  std::string out;
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  char buffer[4096];
  for (size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    out.append(buffer, got);
  }
  return ::pclose(pipe) == 0 ? out : "failed: " + out;
}

TEST(YuanrongLayoutTest, OurDeclarationsAreTheLibrarys) {
  const std::string sdk = real_sdk();
  if (sdk.empty()) GTEST_SKIP() << servers_missing(false);
  const std::string program = ::testing::TempDir() + fmt::format("layouts-{}", ::getpid());
  // Linked against the real library for its type information; nothing of it runs.
  const auto printed = [&](const std::string& flags) {
    return output_of(
        fmt::format("c++ -std=c++20 -w -Wno-invalid-offsetof {} -o {} "
                    "{}/tests/yuanrong/layout/print_layouts.cc -L{}/lib -ldatasystem "
                    "-Wl,--allow-shlib-undefined 2>&1 && LD_LIBRARY_PATH={}/lib {} 2>&1",
                    flags, program, STAGELINK_SOURCE_DIR, sdk, sdk, program));
  };
  const std::string ours = printed(fmt::format("-I{}/src", STAGELINK_SOURCE_DIR));
  const std::string theirs = printed(fmt::format("-DTHEIRS -I{}/include", sdk));
  std::remove(program.c_str());
  EXPECT_EQ(ours, theirs);
  EXPECT_GT(ours.size(), 500U) << ours;
}

}  // namespace
}  // namespace stagelink::test
