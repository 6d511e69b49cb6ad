#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/region_registry.h"
#include "memory/segment.h"
#include "transport/cma/cma_owner.h"
#include "transport/selection.h"
#include "transport/shm/guarded_rows.h"
#include "transport/transport.h"

namespace stagelink::engine {

class PeerState;

struct LocalRegion {
  std::shared_ptr<memory::RegionRecord> record;  // Null: deregistered since.
  std::byte* base = nullptr;
  uint64_t bytes = 0;

  bool retired() const noexcept { return record != nullptr && record->gate.closed(); }
};

struct RemoteRegion {
  RegionDesc desc;
  transport::Route route;
  transport::GuardedRow guard;
  std::shared_ptr<memory::MappedSegment> mapping;  // Null unless the route is shm.
  bool gone = false;                               // The owner has deregistered it.

  bool stale() const noexcept {
    return guard.entry != nullptr && guard.entry->state.load() != guard.live_state;
  }
};

// What a session works with at one moment. Immutable; transfers keep the view that they were
// planned on. When a region goes, the session gets a new view without it.
struct SessionView {
  std::shared_ptr<PeerState> peer;
  bool by_address = false;
  bool owner_resolves = false;  // By address, and the owner's region table is not shared with us.
  std::vector<LocalRegion> locals;
  std::vector<RemoteRegion> remotes;

  std::unique_ptr<transport::CopyTransport> copier;     // Null if all regions go by stream.
  std::shared_ptr<transport::CmaOwner> cma;             // Null unless routes say kCma.
  std::vector<transport::RemoteRegionRef> posted_refs;  // Same index as remotes.

  // By address only: remotes sorted by address, with the running maximum of their ends.
  struct AddressSpan {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t max_end = 0;
    uint32_t index = 0;
  };
  std::vector<AddressSpan> spans;
  void index_addresses();
  // Index of a remote region that holds the whole range.
  std::optional<uint32_t> find(uint64_t address, uint64_t bytes) const noexcept;
};

}  // namespace stagelink::engine
