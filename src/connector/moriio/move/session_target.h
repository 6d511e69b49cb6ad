#pragma once

#include <memory>

#include "connector/moriio/move/move.h"
#include "stagelink/session.h"

namespace stagelink::moriio {

// A session of the engine as a target; region 0 on both sides.
std::shared_ptr<MoveTarget> make_session_target(std::shared_ptr<Session> session);

}  // namespace stagelink::moriio
