#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "connector/block_layout/head_map.h"
#include "connector/block_layout/run_template.h"
#include "connector/moriio/io/io_engine.h"
#include "connector/moriio/move/move.h"
#include "connector/moriio/rank/rank_cache.h"

namespace stagelink::moriio {

// Blocks of one group: local[i] and remote[i] are the same tokens.
struct GroupBlocks {
  std::vector<int64_t> local;
  std::vector<int64_t> remote;
};

// One rank of another engine after the handshake: found to fit, its memory within reach.
//
// Thread-safety: all methods may run at the same time.
class PeerLink {
 public:
  // Errors: incompatible, "field: ours X, theirs Y" for each field; corrupt for metadata that
  // contradicts itself; those of IoEngine.
  static Result<std::shared_ptr<PeerLink>> make(IoEngine& engine,
                                                std::shared_ptr<const RankCache> cache,
                                                const PeerMetadata& metadata);

  // The batches of `layers` (indices; of a slice of their heads). Errors: those of BlockPlan::fill,
  // make_template and IoEngine::create_session.
  struct Wanted {
    std::span<const GroupBlocks> groups;
    std::span<const uint32_t> layers;
    std::optional<block_layout::HeadSlice> slice;
  };
  Result<std::vector<Move>> moves(const Wanted& wanted) SL_EXCLUDES(mutex_);

  // The peer's handshake had a version: it knows what vLLM 0.32 does not.
  bool has_version() const noexcept { return has_version_; }
  const std::string& incarnation() const noexcept { return incarnation_; }
  // False when the peer does not answer, or is gone.
  bool alive() const SL_EXCLUDES(mutex_);

 private:
  struct RemoteLayer {
    size_t memory = 0;  // Of remote_.
    uint64_t base = 0;
    uint64_t num_blocks = 0;
  };
  PeerLink(IoEngine& engine, std::shared_ptr<const RankCache> cache) noexcept
      : engine_(engine), cache_(std::move(cache)) {}
  Status take_layers(const PeerMetadata& metadata);
  Status check(const AgentMetadata& agent) const;
  Result<std::shared_ptr<MoveTarget>> target(uint32_t local, size_t remote) SL_REQUIRES(mutex_);
  Result<const block_layout::RunTemplate*> layout(
      uint32_t layer, const std::optional<block_layout::HeadSlice>& slice) SL_REQUIRES(mutex_);

  IoEngine& engine_;
  const std::shared_ptr<const RankCache> cache_;
  bool has_version_ = false;
  std::string incarnation_;
  uint32_t tp_size_ = 1;
  std::vector<MemoryDesc> remote_;
  std::vector<RemoteLayer> layers_;  // As the cache's.

  mutable Mutex mutex_;
  struct Pair {
    std::shared_ptr<IoSession> session;
    std::shared_ptr<MoveTarget> target;
  };
  std::map<std::pair<uint32_t, size_t>, Pair> sessions_ SL_GUARDED_BY(mutex_);
  struct LayoutKey {
    uint32_t layer;
    uint32_t local_first;
    uint32_t remote_first;
    uint32_t count;
    friend auto operator<=>(const LayoutKey&, const LayoutKey&) = default;
  };
  std::map<LayoutKey, block_layout::RunTemplate> layouts_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::moriio
