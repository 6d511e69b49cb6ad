#pragma once

#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "stagelink/engine.h"
#include "transport/blocking_frames.h"
#include "wire/hello.h"

namespace stagelink::test {

// Somebody who speaks to an engine frame by frame, and is no engine.
class ForgedPeer {
 public:
  explicit ForgedPeer(const Engine& victim);

  // A connection on the victim's UNIX socket, or on its listener for other hosts.
  UniqueFd dial_unix() const;
  UniqueFd dial_tcp() const;
  // Says hello and returns the answer; none if the victim hung up without one.
  std::optional<transport::ReceivedFrame> greet(int fd, wire::Role role,
                                                InstanceId target = {}) const;
  // Sends the first bytes of a hello, and no more.
  void half_greet(int fd) const;

  // The payload of its hello: with a nonce and the flag, if it pretends to have a secret.
  std::vector<std::byte> hello(wire::Role role, InstanceId target = {}) const;
  void pretend_a_secret();

 private:
  const InstanceId instance_;
  wire::Hello hello_;
  std::string path_;
  std::string address_;
};

// True if the other side closes within `timeout`; reads away what it sends.
bool hangs_up(int fd, Duration timeout = std::chrono::seconds(10));

}  // namespace stagelink::test
