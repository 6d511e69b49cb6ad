#pragma once

#include <memory>

#include "connector/moriio/io/io_session.h"
#include "connector/moriio/move/move.h"

namespace stagelink::moriio {

// A session of the IO engine as a target: offsets count from the beginnings of its two memories.
// Its batches end by the engine's own deadline, not by that of post().
std::shared_ptr<MoveTarget> make_io_session_target(std::shared_ptr<IoSession> session);

}  // namespace stagelink::moriio
