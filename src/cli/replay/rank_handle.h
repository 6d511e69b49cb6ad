#pragma once

#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "base/deadline.h"
#include "cli/replay/rank_config.h"
#include "stagelink/result.h"

namespace stagelink::cli::replay {

// One rank as the coordinator sees it, wherever its process runs. Destroying the handle kills the
// process, if it still runs.
//
// Thread-safety: one thread.
class RankHandle {
 public:
  virtual ~RankHandle() = default;

  virtual const std::string& name() const noexcept = 0;  // "prefill rank 0 (pid 4711)"

  // To wait for events with poll(2). -1: there is nothing to wait for.
  virtual int fd() const noexcept = 0;
  virtual bool wants_write() const noexcept = 0;
  // Sends what is queued and takes what has come.
  virtual void pump() = 0;
  virtual void send(const nlohmann::json& message) = 0;
  // The next event of the rank. Errors: corrupt (frame).
  virtual Result<std::optional<nlohmann::json>> next() = 0;
  // No event comes any more: the process has ended, or cannot be heard.
  virtual bool ended() const noexcept = 0;

  virtual void kill() noexcept = 0;
  // Waits for the end, at most until the deadline; then kills. Says how it ended: "exited with
  // code 3", "was killed by signal 9 (Killed)". Once reaped, the same answer again.
  virtual const std::string& reap(const Deadline& deadline) = 0;
  // It ended by itself and with code 0. Only after reap().
  virtual bool ended_well() const noexcept = 0;
};

// Starts ranks.
//
// Thread-safety: one thread.
class RankStarter {
 public:
  virtual ~RankStarter() = default;
  // Errors: limit (nofile); invalid_state (system); peer_lost, if the ranks are to run elsewhere
  // and that place is gone.
  virtual Result<std::unique_ptr<RankHandle>> start(const RankConfig& config) = 0;
};

// Ranks that are children of this process.
class LocalRanks final : public RankStarter {
 public:
  Result<std::unique_ptr<RankHandle>> start(const RankConfig& config) override;
};

}  // namespace stagelink::cli::replay
