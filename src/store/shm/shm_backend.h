#pragma once

#include <memory>

#include "stagelink/result.h"
#include "stagelink/store_options.h"
#include "store/backend.h"
#include "store/shm/pause.h"

namespace stagelink::store::shm {

// The embedded store: an arena of shared memory on this host. Errors: as ObjectStore::open.
Result<std::shared_ptr<Backend>> make_shm_backend(const StoreOptions& options, Pauses pauses = {});

}  // namespace stagelink::store::shm
