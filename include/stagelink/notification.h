#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stagelink/region.h"
#include "stagelink/status.h"

namespace stagelink {

// A small message from a peer. One that was sent `after` a transfer arrives only when the bytes of
// that transfer are in place; if the transfer failed, it arrives with the failure's reason instead
// of kOk, so that the receiver never waits for data that will not come.
struct Notification {
  InstanceId source;
  std::string source_name;
  std::vector<std::byte> payload;
  Reason outcome = Reason::kOk;
};

}  // namespace stagelink
