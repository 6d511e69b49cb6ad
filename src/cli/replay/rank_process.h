#pragma once

#include <memory>
#include <string>

#include <sys/types.h>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "cli/replay/control_channel.h"
#include "cli/replay/rank_config.h"
#include "cli/replay/rank_handle.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

// Removes the sockets and counters of ranks that were killed.
void remove_traces(const std::string& runtime_dir);

// One rank: a child process that runs this same program, and the channel to it. It dies with its
// parent. Destroying the object kills it, if it still runs, and reaps it.
//
// Thread-safety: one thread.
class RankProcess final : public RankHandle {
 public:
  // Starts the process and sends it its configuration. Errors: limit (nofile), invalid_state
  // (system).
  static Result<std::unique_ptr<RankProcess>> start(const RankConfig& config);
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess() override;

  const std::string& name() const noexcept override { return name_; }
  pid_t pid() const noexcept { return pid_; }

  int fd() const noexcept override { return channel_.fd(); }
  bool wants_write() const noexcept override { return channel_.wants_write(); }
  void pump() override;
  void send(const nlohmann::json& message) override { channel_.send(message); }
  Result<std::optional<nlohmann::json>> next() override { return channel_.next(); }
  bool ended() const noexcept override { return channel_.ended(); }

  void kill() noexcept override;
  const std::string& reap(const Deadline& deadline) override;
  bool ended_well() const noexcept override { return ended_well_; }

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
