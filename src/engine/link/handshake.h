#pragma once

#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"
#include "wire/hello.h"

namespace stagelink::engine {

class EngineCore;

struct Greeted {
  wire::Welcome welcome;
  std::vector<UniqueFd> fds;
};

// The connecting side: sends our hello and reads the welcome. `target` is the instance that is
// meant; zero: whoever answers. Errors: what the peer refuses us with, peer_lost (restarted),
// corrupt (frame), timed_out.
Result<Greeted> greet(const EngineCore& core, int fd, wire::Role role, InstanceId target,
                      const Deadline& deadline);

}  // namespace stagelink::engine
