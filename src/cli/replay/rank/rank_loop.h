#pragma once

#include "cli/replay/control_channel.h"
#include "stagelink/status.h"

namespace stagelink::cli::replay {

// The life of a rank process: reads its configuration from the channel, opens engine and pool, says
// that it is ready, works until the parent stops it or is gone, closes. A failure has been reported
// to the parent when it is returned.
Status run_rank(ControlChannel& parent);

}  // namespace stagelink::cli::replay
