#pragma once

#include <optional>

#include "transport/stream/staging_area.h"

namespace stagelink::transport {

// What both ends of a data connection have agreed on in their handshake.
struct StreamTraits {
  bool checked = false;                               // Frames carry sums.
  bool grouped = false;                               // The owner understands lists in groups.
  std::optional<StagingArea> staging = std::nullopt;  // Never on a checked connection.
};

}  // namespace stagelink::transport
