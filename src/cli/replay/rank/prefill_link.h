#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "cli/replay/rank/pair_link.h"
#include "cli/replay/rank/rank.h"

namespace stagelink::cli::replay {

// Decode's view of one prefill rank. Down: not connected. Greeted: connected, hello sent. Up: the
// answer is here, requests may be asked. From down it greets again by itself, with a pause.
//
// Thread-safety: one thread.
class PrefillLink {
 public:
  enum class State : uint8_t { kDown, kGreeted, kUp };

  PrefillLink(const RankContext& context, uint32_t rank);

  // The rank runs as this engine now (it is new, or was started again).
  void set_descriptor(std::vector<std::byte> descriptor);
  // Its answer. Opens the session (read mode). Errors drop the link.
  Status on_hello(const InstanceId& source, const Hello& hello);
  // Connects and greets if it is time to, sends what is queued. A failure means that the link was
  // up and is down now; failures to come up are kept for last_failure().
  Status step();
  void drop();

  const Status& last_failure() const noexcept { return last_failure_; }
  State state() const noexcept { return state_; }
  bool is(const InstanceId& instance) const noexcept;
  PairLink& pair() noexcept { return pair_; }
  const PairLink& pair() const noexcept { return pair_; }

 private:
  using Clock = std::chrono::steady_clock;
  void greet();

  const RankContext& context_;
  const uint32_t rank_;
  PairLink pair_;
  State state_ = State::kDown;
  std::vector<std::byte> descriptor_;
  InstanceId instance_;
  Status last_failure_;
  uint32_t failed_tries_ = 0;  // In a row.
  Clock::time_point next_try_;
  Clock::time_point answer_due_;
};

}  // namespace stagelink::cli::replay
