#include "engine/batch/remote_regions.h"

#include <optional>
#include <string>

#include "engine/core.h"
#include "engine/link/peer_state.h"
#include "wire/table_layout.h"

namespace stagelink::engine {
namespace {

constexpr uint64_t live_state(uint64_t generation) noexcept { return generation << 1 | 1; }

// A consistent look at a row; nothing if it is not live.
std::optional<RegionDesc> read_row(const PeerState& peer, uint32_t index) {
  const wire::TableEntry& row = *peer.shared()->row(index);
  const uint64_t state = row.state.load();
  if ((state & 1) == 0) return std::nullopt;
  RegionDesc desc;
  desc.instance = peer.instance();
  desc.index = index;
  desc.generation = state >> 1;
  desc.address = row.address.load();
  desc.bytes = row.bytes.load();
  desc.nonce = row.nonce.load();
  const uint32_t flags = row.flags.load();
  desc.shareable = (flags & wire::kFlagShareable) != 0;
  desc.access = (flags & wire::kFlagPeersMayWrite) != 0 ? Access::kReadWrite : Access::kReadOnly;
  if (row.state.load() != state) return std::nullopt;
  return desc;
}

Result<RemoteRegion> route_remote(PeerState& peer, const RegionDesc& desc,
                                  const Deadline& deadline) {
  RemoteRegion region;
  region.desc = desc;
  SharedView* const shared = peer.shared();
  if (shared != nullptr) {
    region.guard = {shared->row(desc.index), live_state(desc.generation), desc.index};
  }
  transport::RouteFacts facts;
  facts.shm_enabled = peer.core().enabled(transport::TransportKind::kShm);
  facts.cma_enabled = peer.core().enabled(transport::TransportKind::kCma);
  facts.secret = peer.core().auth_key() != nullptr;
  facts.stream = peer.stream_kind();
  facts.same_host = shared != nullptr;
  facts.shareable = desc.shareable;
  if (facts.shm_enabled && facts.same_host && facts.shareable) {
    auto mapped = peer.map_region(desc, deadline);
    if (mapped.ok()) region.mapping = *std::move(mapped);
    facts.mapping = mapped.status();
  }
  if (peer.core().may_use_cma() && facts.same_host && region.mapping == nullptr) {
    facts.cma = peer.cma_status();
    facts.cma_min_run = peer.core().options().cma_min_run;
  }
  region.route = transport::select_route(facts);
  if (!region.route.kind) {
    return Status(Reason::kUnreachable, "no transport reaches the region: " + region.route.why);
  }
  return region;
}

}  // namespace

Result<RemoteRegion> resolve_remote(PeerState& peer, const RegionDesc& desc,
                                    const Deadline& deadline) {
  SL_TRY(peer.usable(/*needs_process=*/false));
  if (desc.instance != peer.instance()) {
    return Status(Reason::kIncompatible, "region descriptor of instance " +
                                             desc.instance.to_string() + "; the peer is instance " +
                                             peer.instance().to_string());
  }
  // Over TCP the owner checks it, with every batch.
  if (peer.shared() == nullptr) return route_remote(peer, desc, deadline);
  if (desc.index >= peer.shared()->rows_used()) {
    return Status(Reason::kNotRegistered,
                  "the peer never had a region in row " + std::to_string(desc.index));
  }
  const auto current = read_row(peer, desc.index);
  if (!current || current->generation != desc.generation) {
    return Status(Reason::kSuperseded, "the region in row " + std::to_string(desc.index) +
                                           ", generation " + std::to_string(desc.generation) +
                                           ", was deregistered by its owner");
  }
  if (*current != desc) {
    return Status(Reason::kCorrupt, "the region descriptor differs from the owner's table");
  }
  return route_remote(peer, desc, deadline);
}

Result<std::vector<RemoteRegion>> read_region_table(PeerState& peer,
                                                    const std::vector<RemoteRegion>& known,
                                                    const Deadline& deadline) {
  std::vector<RemoteRegion> regions;
  auto next = known.begin();  // Also in the order of rows.
  const uint32_t rows = peer.shared()->rows_used();
  for (uint32_t index = 0; index < rows; ++index) {
    const auto desc = read_row(peer, index);
    if (!desc) continue;
    while (next != known.end() && next->desc.index < index) ++next;
    if (next != known.end() && !next->gone && next->desc == *desc) {
      regions.push_back(*next);
      continue;
    }
    auto region = route_remote(peer, *desc, deadline);
    if (region.ok()) {
      regions.push_back(*std::move(region));
    } else if (region.status().scope() == Scope::kPeer &&
               region.status().code() != Code::kUnreachable) {
      return region.status();
    }
  }
  return regions;
}

}  // namespace stagelink::engine
