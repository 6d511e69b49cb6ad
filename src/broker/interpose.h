#pragma once

#include "broker/sdk.h"

namespace stagelink::broker {

// From now on every shared mapping of a file in this process is told to `listener`, which must live
// as long as the process. Null: nobody.
void listen_to_mappings(MappingListener* listener) noexcept;

}  // namespace stagelink::broker
