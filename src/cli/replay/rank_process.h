#pragma once

#include <memory>
#include <string>

#include <sys/types.h>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "cli/replay/control_channel.h"
#include "cli/replay/rank_config.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

// One rank: a child process that runs this same program, and the channel to it. It dies with its
// parent. Destroying the object kills it, if it still runs, and reaps it.
//
// Thread-safety: one thread.
class RankProcess {
 public:
  // Starts the process and sends it its configuration. Errors: limit (nofile), invalid_state
  // (system).
  static Result<std::unique_ptr<RankProcess>> start(const RankConfig& config);
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess();

  const std::string& name() const noexcept { return name_; }  // "prefill rank 0 (pid 4711)"
  pid_t pid() const noexcept { return pid_; }
  ControlChannel& channel() noexcept { return channel_; }
  // Readable once the process has ended.
  int pidfd() const noexcept { return pidfd_.get(); }

  void kill() noexcept;
  // Waits for the end, at most until the deadline; then kills. Says how it ended: "exited with
  // code 3", "was killed by signal 9 (Killed)". Once reaped, the same answer again.
  const std::string& reap(const Deadline& deadline);
  // It ended by itself and with code 0. Only after reap().
  bool ended_well() const noexcept { return ended_well_; }

 private:
  RankProcess(std::string name, pid_t pid, UniqueFd pidfd, ControlChannel channel);

  std::string name_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  ControlChannel channel_;
  std::string ending_;
  bool ended_well_ = false;
};

// In the child: the descriptor of its channel.
inline constexpr int kControlFd = 3;

}  // namespace stagelink::cli::replay
