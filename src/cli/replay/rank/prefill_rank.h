#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cli/replay/rank/block_pool.h"
#include "cli/replay/rank/pair_link.h"
#include "cli/replay/rank/rank.h"

namespace stagelink::cli::replay {

// Fills the blocks that decode ranks ask for, keeps them for others who share the prefix, and lets
// decode pull them (read mode) or pushes them (write mode). A block stays leased until decode says
// that it is done with the request, or the decode rank is gone.
//
// Thread-safety: one thread.
class PrefillRank final : public Rank {
 public:
  static Result<std::unique_ptr<PrefillRank>> create(const RankContext& context);

  Status on_event(const nlohmann::json& event) override;
  void on_message(Incoming incoming) override;
  void step() override;
  Duration patience() const override;
  nlohmann::json summary() const override;

 private:
  struct Ask {
    uint32_t decode_rank = 0;
    uint32_t request = 0;
    uint32_t attempt = 0;
    std::vector<AskRecord> records;
    std::vector<uint32_t> again;  // Positions to push once more.
    std::optional<BlockLease> lease;
  };
  struct Decode {
    explicit Decode(PairLink made) : link(std::move(made)) {}
    PairLink link;
    InstanceId instance;
    Hello hello;                   // The last one, to connect again.
    uint32_t failed_attaches = 0;  // In a row.
    std::chrono::steady_clock::time_point next_attach;
    std::map<uint32_t, Ask> asks;  // By request.
  };
  struct Job {
    uint32_t decode_rank;
    uint32_t request;
    uint32_t attempt;
  };

  PrefillRank(const RankContext& context, BlockPool pool);
  void on_hello(const InstanceId& source, const Hello& hello);
  Status attach(Decode& decode);
  void attach_again(Decode& decode);
  void on_ask(uint32_t decode_rank, const PairMessage& message, const AskPart& part);
  void on_again(uint32_t decode_rank, const PairMessage& message, const AgainPart& part);
  void end(Ask& ask);
  bool serve(Decode& decode, Ask& ask);  // False: no room yet.
  void fill(const Ask& ask);
  std::vector<ReadyRecord> ready_records(const Ask& ask) const;
  void push(Decode& decode, Ask& ask);
  Status push_blocks(Decode& decode, const Ask& ask, const std::vector<PairMessage>& ready);
  std::optional<uint32_t> rank_of(const InstanceId& instance) const;

  const RankContext context_;
  BlockPool pool_;
  std::vector<uint64_t> checksums_;  // By block.
  std::map<uint32_t, Decode> decodes_;
  std::deque<Job> jobs_;
  bool blocked_ = false;  // The first job waits for a lease to end.
  uint64_t filled_blocks_ = 0;
};

}  // namespace stagelink::cli::replay
