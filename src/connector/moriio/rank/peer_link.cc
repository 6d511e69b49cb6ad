#include "connector/moriio/rank/peer_link.h"

#include <algorithm>

#include <fmt/format.h>

#include "connector/block_layout/block_plan.h"
#include "connector/moriio/move/session_target.h"

namespace stagelink::moriio {
namespace {

using block_layout::BlockPlan;
using block_layout::HeadRange;
using block_layout::HeadSlice;
using block_layout::RunTemplate;

Status differs(std::string_view field, std::string_view ours, std::string_view theirs) {
  return {Reason::kIncompatible, fmt::format("{}: ours {}, theirs {}", field, ours, theirs)};
}

}  // namespace

Result<std::shared_ptr<PeerLink>> PeerLink::make(IoEngine& engine,
                                                 std::shared_ptr<const RankCache> cache,
                                                 const PeerMetadata& metadata) {
  std::shared_ptr<PeerLink> link(new PeerLink(engine, std::move(cache)));
  SL_TRY(link->check(metadata.agent));
  const MessageExtras& extras = metadata.agent.extras;
  link->has_version_ = extras.version.has_value();
  link->incarnation_ = extras.incarnation.value_or("");
  link->tp_size_ = extras.tp_size.value_or(link->cache_->tp_size);
  SL_TRY(link->take_layers(metadata));
  SL_ASSIGN(const EngineDesc desc, EngineDesc::unpack(metadata.agent.agent_metadata));
  SL_TRY(engine.register_remote_engine(desc));
  return link;
}

// A peer without a version says little: its blocks must be as long as ours, its backend the same.
Status PeerLink::check(const AgentMetadata& agent) const {
  if (!agent.compat.empty()) return block_layout::check_compatible(cache_->compat, agent.compat);
  if (agent.attn_backend_name != cache_->attn_backend_name) {
    return differs("attn_backend", cache_->attn_backend_name, agent.attn_backend_name);
  }
  auto ours = block_layout::find_geometry(cache_->layers[0].tensor, cache_->layers[0].spec);
  if (!ours.ok()) return ours.status();
  if (agent.block_len != ours->block_len()) {
    return differs("block_len", std::to_string(ours->block_len()), std::to_string(agent.block_len));
  }
  return {};
}

Status PeerLink::take_layers(const PeerMetadata& metadata) {
  const AgentMetadata& agent = metadata.agent;
  const size_t count = cache_->layers.size();
  if (metadata.layers.size() != count || agent.kv_caches_base_addr.size() < count) {
    return differs("layers", std::to_string(count), std::to_string(metadata.layers.size()));
  }
  for (size_t i = 0; i < count; ++i) {
    const LayerRegions& theirs = metadata.layers[i];
    if (theirs.layer != cache_->layers[i].name) {
      return differs("layers", cache_->layers[i].name, theirs.layer);
    }
    if (theirs.regions.size() != 1) {
      return differs("regions", "1", std::to_string(theirs.regions.size()));
    }
    SL_ASSIGN(MemoryDesc memory, MemoryDesc::unpack(theirs.regions[0]));
    const uint64_t address = agent.kv_caches_base_addr[i];
    if (address < memory.data || address - memory.data > memory.size) {
      return {Reason::kCorrupt, fmt::format("layer {} is not within its memory", theirs.layer)};
    }
    auto at = std::find(remote_.begin(), remote_.end(), memory);
    if (at == remote_.end()) at = remote_.insert(at, std::move(memory));
    const auto blocks = agent.layer_num_blocks.find(theirs.layer);
    const uint64_t num_blocks =
        blocks != agent.layer_num_blocks.end() ? blocks->second : agent.num_blocks;
    layers_.push_back({static_cast<size_t>(at - remote_.begin()), address - at->data, num_blocks});
  }
  return {};
}

Result<std::vector<Move>> PeerLink::moves(const Wanted& wanted) {
  BlockPlan plan;
  std::vector<Move> moves;
  MutexLock lock(mutex_);
  for (const uint32_t index : wanted.layers) {
    const CacheLayer& layer = cache_->layers[index];
    const GroupBlocks& blocks = wanted.groups[layer.group];
    if (blocks.local.empty()) continue;
    SL_ASSIGN(const RunTemplate* const layout, this->layout(index, wanted.slice));
    SL_TRY(plan.fill(*layout, {blocks.local, blocks.remote}));
    const RemoteLayer& remote = layers_[index];
    SL_ASSIGN(std::shared_ptr<MoveTarget> target, this->target(layer.memory, remote.memory));
    Move move{std::move(target), {}};
    plan.append_to(move.ranges.local_offsets, move.ranges.remote_offsets, move.ranges.sizes,
                   layer.base, remote.base);
    moves.push_back(std::move(move));
  }
  return merge_moves(std::move(moves));
}

Result<const RunTemplate*> PeerLink::layout(uint32_t layer, const std::optional<HeadSlice>& slice) {
  const HeadSlice part = slice.value_or(HeadSlice{});
  const LayoutKey key{layer, part.local_first, part.remote_first, part.count};
  if (const auto at = layouts_.find(key); at != layouts_.end()) return &at->second;
  const CacheLayer& ours = cache_->layers[layer];
  SL_ASSIGN(const HeadRange heads,
            block_layout::heads_of_rank(cache_->total_kv_heads, tp_size_, 0));
  SL_ASSIGN(const auto local, block_layout::find_geometry(ours.tensor, ours.spec));
  SL_ASSIGN(const auto remote,
            geometry_with(ours, slice ? heads.count : local.heads, layers_[layer].num_blocks));
  SL_ASSIGN(RunTemplate made, block_layout::make_template(local, remote, slice));
  return &layouts_.emplace(key, std::move(made)).first->second;
}

Result<std::shared_ptr<MoveTarget>> PeerLink::target(uint32_t local, size_t remote) {
  Pair& pair = sessions_[{local, remote}];
  if (pair.target == nullptr) {
    SL_ASSIGN(pair.session, engine_.create_session(cache_->memories[local], remote_[remote]));
    pair.target = make_session_target({pair.session, &pair.session->session()});
  }
  return pair.target;
}

bool PeerLink::alive() const {
  MutexLock lock(mutex_);
  return std::all_of(sessions_.begin(), sessions_.end(), [](const auto& entry) {
    return entry.second.session == nullptr || entry.second.session->alive();
  });
}

}  // namespace stagelink::moriio
