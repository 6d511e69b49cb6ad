#pragma once

#include <string>

#include <sys/types.h>

#include "integration/support/channel.h"

namespace stagelink::test {

// What a child does; its return value is the exit code. It ends when the channel ends.
using Role = int (*)(Channel& parent);

// Makes a role known under its name: one object at namespace scope in the file that defines it.
struct RoleRegistration {
  RoleRegistration(const char* name, Role role);
};

// For main(): runs the role that the command line names.
int run_role(int argc, char** argv);

// A process of its own that runs a role: this program, executed again. It dies with the thread that
// started it, and by itself after 60 seconds.
class ChildProcess {
 public:
  explicit ChildProcess(const char* role);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  // Ends the channel, gives the child some seconds to leave, then kills it.
  ~ChildProcess();

  pid_t pid() const noexcept { return pid_; }
  Channel& channel() noexcept { return channel_; }

  void kill_hard();  // SIGKILL, reaped.
  void stop();       // SIGSTOP; returns when it has stopped.
  void resume();
  // Exit code, or -signal. Kills the child at the deadline.
  int wait_exit(Duration timeout = std::chrono::seconds(10));

 private:
  Channel channel_;
  pid_t pid_ = -1;
};

}  // namespace stagelink::test
