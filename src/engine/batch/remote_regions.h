#pragma once

#include <vector>

#include "base/deadline.h"
#include "engine/batch/session_view.h"
#include "stagelink/result.h"

namespace stagelink::engine {

class PeerState;

// Checks a descriptor against the owner's table if that is shared with us, maps the memory if it
// can be mapped, and chooses a route. Errors: incompatible (another instance's descriptor),
// not_registered, superseded, corrupt (the descriptor differs from the table), unreachable,
// timed_out.
Result<RemoteRegion> resolve_remote(PeerState& peer, const RegionDesc& desc,
                                    const Deadline& deadline);

// All live regions of a peer that shares its table; those in `known` that are still live are taken
// over. A region that no transport reaches is left out.
Result<std::vector<RemoteRegion>> read_region_table(PeerState& peer,
                                                    const std::vector<RemoteRegion>& known,
                                                    const Deadline& deadline);

}  // namespace stagelink::engine
