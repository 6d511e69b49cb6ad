#include <csignal>
#include <fstream>

#include <pthread.h>

#include "engine/link/listen_socket.h"
#include "unit/cli/run_command.h"

namespace stagelink::cli {
namespace {

// The command blocks the signals that end it, for good: its process serves or ends.
class RegistryCommandTest : public testing::Test {
 protected:
  void SetUp() override { ::pthread_sigmask(SIG_SETMASK, nullptr, &before_); }
  void TearDown() override { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

TEST_F(RegistryCommandTest, AnErrorNamesTheOptionAsItWasTyped) {
  Endpoint taken;
  const auto holder = engine::listen_tcp_socket({"127.0.0.1", 0}, taken);
  ASSERT_TRUE(holder.ok());
  const std::string port = std::to_string(taken.port);
  for (const auto& [option, value, code] : std::vector<std::tuple<std::string, std::string, int>>{
           {"--host", "no.such.host.invalid", kExitUsage},
           {"--host", "192.0.2.1", kExitUsage},  // Of nobody.
           {"--port", port, kExitFailed},
           {"--port", "65536", kExitUsage},
           {"--secret-file", "/proc/no-such-file", kExitFailed},
           {"--secret-file", "/proc/version", kExitFailed},  // Everybody may read it.
           {"--max-bytes", "65535", kExitUsage},
           {"--max-bytes", "many", kExitUsage},
           {"--max-entries", "0", kExitUsage},
           {"--max-producers", "0", kExitUsage},
           {"--max-connections", "0", kExitUsage},
       }) {
    std::vector<std::string> arguments = {"registry", option, value};
    if (option != "--port") arguments.insert(arguments.end(), {"--port", "0"});
    const CommandOutcome outcome = run_command(std::move(arguments));
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    EXPECT_NE((outcome.err + outcome.out).find(option), std::string::npos) << outcome.err;
    for (const char* const other : {"bind", "secret_file", "max_bytes"}) {
      EXPECT_EQ(outcome.err.find(other), std::string::npos) << outcome.err;
    }
  }
}

}  // namespace
}  // namespace stagelink::cli
