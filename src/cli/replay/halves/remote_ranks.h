#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "cli/replay/control_channel.h"
#include "cli/replay/halves/half_message.h"
#include "cli/replay/rank_handle.h"

namespace stagelink::cli::replay {

// The prefill ranks of a run whose prefill half is another process, seen from the decode half. When
// the connection ends or falls silent, all of them have ended, and none can be started any more.
//
// Thread-safety: one thread.
class RemoteRanks final : public RankStarter {
 public:
  // `where` is for messages: the other half's address.
  RemoteRanks(ControlChannel channel, std::string where, uint32_t ranks);
  ~RemoteRanks() override;
  RemoteRanks(const RemoteRanks&) = delete;
  RemoteRanks& operator=(const RemoteRanks&) = delete;

  Result<std::unique_ptr<RankHandle>> start(const RankConfig& config) override;

  // Sends the outcome, and waits until the other half has taken it or the deadline has passed.
  void finish(const nlohmann::json& report, int exit_code, const Deadline& deadline);
  bool lost() const noexcept { return !loss_.ok(); }

 private:
  class Rank;
  using Clock = std::chrono::steady_clock;

  void pump();
  void wait(Duration patience);
  Status take(const nlohmann::json& message);
  void lose(Status why);

  ControlChannel channel_;
  const std::string where_;
  const uint32_t ranks_;
  uint32_t next_life_ = 0;
  std::map<RankLife, Rank*> running_;
  Status loss_;
  Clock::time_point last_heard_;
  Clock::time_point next_pulse_;
};

}  // namespace stagelink::cli::replay
