#pragma once

#include "stagelink/region.h"

namespace stagelink {

// The identity of this boot of this host. Processes with equal ids can pass fds to each other if
// they share the runtime directory.
InstanceId host_id() noexcept;

}  // namespace stagelink
