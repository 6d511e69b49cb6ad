#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/backend.h"
#include "store/yuanrong/channel/worker_port.h"
#include "store/yuanrong/object_header.h"

namespace stagelink::store::yuanrong {

// One answer for each key: the view; not_found or timed_out; superseded (evicted) if pieces of a
// large object are gone; corrupt; unreachable; unreachable (partition) for a miss behind a cut;
// peer_lost.
std::vector<Result<ViewPtr>> get_objects(const std::shared_ptr<WorkerPort>& port,
                                         std::span<const std::string> keys, const GetTerms& terms);

// The header of what is under the key just now; nothing if there is nothing. Errors: as above.
Result<std::optional<ObjectHeader>> look_up(WorkerPort& port, std::string_view key);

}  // namespace stagelink::store::yuanrong
