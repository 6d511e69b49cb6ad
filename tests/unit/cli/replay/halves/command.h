#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "base/deadline.h"
#include "unit/cli/replay/temp_file.h"

namespace stagelink::cli::replay {

// `stagelink ...` as a process, perhaps in a network namespace of its own. Killed and reaped at the
// end of its life.
class Command {
 public:
  struct Place {
    std::string runtime_dir;  // Of its engines.
    std::string network;      // A network namespace's name; empty: ours.
  };
  Command(const Place& place, std::vector<std::string> arguments);
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  ~Command();

  pid_t pid() const noexcept { return pid_; }
  // Exit code, or the negative number of the signal. A process that hangs is killed: -1000.
  int wait();
  std::string out() const;
  std::string err() const;

 private:
  TempDir dir_;
  pid_t pid_ = -1;
};

inline constexpr int kHangs = -1000;

// A process below `parent` whose command line contains `name`; -1 if none does.
pid_t descendant(pid_t parent, const std::string& name);

// A small trace: `requests` prompts that share their first id.
std::string small_trace(uint32_t requests, uint32_t gap_ms = 0);

// A port of the loopback that was free a moment ago.
uint16_t free_port();

}  // namespace stagelink::cli::replay
