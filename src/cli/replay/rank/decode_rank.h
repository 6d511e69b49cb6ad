#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cli/replay/rank/arrival.h"
#include "cli/replay/rank/block_pool.h"
#include "cli/replay/rank/limit_probe.h"
#include "cli/replay/rank/prefill_link.h"
#include "cli/replay/rank/ranges.h"
#include "cli/replay/rank/rank.h"

namespace stagelink::cli::replay {

// Serves requests: leases blocks for the whole prompt, asks a prefill rank for those it does not
// hold, pulls them in one batch (or has them pushed), checks them, keeps them for later requests.
// What fails is tried again, at most `retries` times a request, and then reported as lost.
//
// Thread-safety: one thread.
class DecodeRank final : public Rank {
 public:
  static Result<std::unique_ptr<DecodeRank>> create(const RankContext& context);

  Status on_event(const nlohmann::json& event) override;
  void on_message(Incoming incoming) override;
  void step() override;
  Duration patience() const override;
  nlohmann::json summary() const override;

 private:
  using Clock = std::chrono::steady_clock;
  // kLease: waits for room in the pool. kAsk: for the link. kWait: for the prefill rank's answer.
  // kArrive: the blocks can be pulled (read mode) or are here (write mode).
  enum class Phase : uint8_t { kLease, kAsk, kWait, kArrive, kOver };
  struct Request {
    uint32_t index = 0;
    uint32_t prefill_rank = 0;
    std::vector<BlockKey> keys;
    std::optional<BlockLease> lease;
    Phase phase = Phase::kLease;
    uint32_t attempt = 0;
    uint32_t tries = 0;
    Clock::time_point begun;
    Clock::time_point not_before;
    Clock::time_point due;           // Of the phase.
    std::vector<ReadyRecord> ready;  // For each missing block.
    std::vector<uint32_t> moving;    // Positions in `missing` that are still to arrive.
    uint64_t verified = 0;
    std::vector<uint32_t> wrong;  // Positions in `missing`.
  };

  DecodeRank(const RankContext& context, BlockPool pool, std::optional<LimitProbe> probe);

  void on_request(const nlohmann::json& event);
  void on_ready(Request& request, Reason outcome, const PairMessage& message);
  bool advance(Request& request);  // True if it did a long piece of work.
  void lease(Request& request);
  void ask(Request& request);
  void arrive(Request& request);
  Status pull(const Request& request);
  void move_again(Request& request, std::vector<uint32_t> positions);
  void try_again(Request& request, Reason cause, uint64_t count = 1);
  void finish(Request& request);
  Duration measure_limit(const Request& request);
  void lose(Request& request, Reason cause);
  void on_link_down(uint32_t rank, const Status& cause);
  void enter(Request& request, Phase phase) const;
  void say_done(const Request& request);
  std::vector<ArrivedBlock> arrived(const Request& request) const;
  Request* find(uint32_t index);

  const RankContext context_;
  BlockPool pool_;
  std::optional<LimitProbe> probe_;
  std::vector<std::unique_ptr<PrefillLink>> links_;  // By rank.
  std::deque<Request> requests_;                     // In order of arrival.
};

}  // namespace stagelink::cli::replay
