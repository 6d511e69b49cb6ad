#pragma once

#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"

namespace stagelink::broker {

// Whether somebody listens at an address, told by a TCP connection that is kept: its end is noticed
// at once, and nothing is sent over it.
//
// Thread-safety: none; one thread.
class Reach {
 public:
  explicit Reach(std::string address) : address_(std::move(address)) {}

  const std::string& address() const noexcept { return address_; }
  // Looks at the connection, or makes one. Errors: unreachable (refused), unreachable.
  Status check(const Deadline& deadline);
  // Sleeps until the deadline or the end of the connection.
  void wait_for_end(const Deadline& deadline);

 private:
  Status connect(const Deadline& deadline);
  bool ended() noexcept;

  std::string address_;
  UniqueFd socket_;
};

}  // namespace stagelink::broker
