#pragma once

#include <nlohmann/json.hpp>

#include "cli/replay/control_channel.h"
#include "cli/replay/rank/pair_message.h"
#include "cli/replay/rank/pool_memory.h"
#include "cli/replay/rank_config.h"
#include "stagelink/engine.h"

namespace stagelink::cli::replay {

// What both kinds of rank work with. Owned by the process's main function; outlives the rank.
struct RankContext {
  const RankConfig& config;
  Engine& engine;
  PoolMemory& pool;
  ControlChannel& parent;

  // One event to the parent.
  void report(nlohmann::json event) const { parent.send(event); }
  void report_error(Reason cause, uint64_t count = 1) const;
  // A batch that took `spent` from submission to the end of the wait.
  void report_transfer(uint32_t request, uint64_t bytes,
                       std::chrono::steady_clock::time_point start, Duration spent) const;
};

// A message of a peer, with the outcome of the transfer that it came after.
struct Incoming {
  InstanceId source;
  Reason outcome = Reason::kOk;
  PairMessage message;
};

// The work of a rank, driven by one loop: events of the parent, messages of peers, steps.
//
// Thread-safety: one thread.
class Rank {
 public:
  virtual ~Rank() = default;

  // A failure ends the rank.
  virtual Status on_event(const nlohmann::json& event) = 0;
  virtual void on_message(Incoming incoming) = 0;
  // Does what can be done now: at most one long piece of work (a fill, a transfer, a check), so
  // that events and messages are looked at in between.
  virtual void step() = 0;
  // How long the loop may sleep if nothing comes in.
  virtual Duration patience() const = 0;
  // Figures for the parent, when it stops the rank.
  virtual nlohmann::json summary() const = 0;
};

}  // namespace stagelink::cli::replay
