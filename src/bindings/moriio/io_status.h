#pragma once

#include <cstdint>
#include <vector>

#include "connector/moriio/io/transfer_status.h"

namespace stagelink::bindings {

// moriio::wait_all() from Python: without the interpreter lock, interrupted by Ctrl-C.
moriio::StatusCode wait_for_all(const std::vector<moriio::StatusRef>& statuses, int64_t timeout_ms);

}  // namespace stagelink::bindings
