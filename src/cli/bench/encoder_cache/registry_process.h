#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "base/endpoint.h"
#include "base/unique_fd.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

// `stagelink registry` in a process of its own, at a free port. Killed when it goes.
//
// Thread-safety: used by one thread.
class RegistryProcess {
 public:
  // Errors: not_found (cannot be started), timed_out, system (it does not say where it listens).
  static Result<std::unique_ptr<RegistryProcess>> start(const std::string& exe);
  ~RegistryProcess();
  RegistryProcess(const RegistryProcess&) = delete;
  RegistryProcess& operator=(const RegistryProcess&) = delete;

  pid_t pid() const noexcept { return pid_; }
  const Endpoint& endpoint() const noexcept { return endpoint_; }
  std::string url() const { return "http://" + endpoint_.to_string(); }
  uint64_t resident_bytes() const;
  int threads() const;

 private:
  explicit RegistryProcess(pid_t pid) noexcept : pid_(pid) {}
  const pid_t pid_;
  Endpoint endpoint_;
};

// A kept HTTP connection without any cost of its own. Errors: unreachable, timed_out, peer_lost.
class PlainConnection {
 public:
  static Result<PlainConnection> open(const Endpoint& server);
  Status send(std::string_view bytes);
  // True once a whole answer has come, which is then forgotten.
  Result<bool> receive();
  bool succeeded() const noexcept { return succeeded_; }  // The last answer was 200.
  int fd() const noexcept { return fd_.get(); }

 private:
  explicit PlainConnection(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  UniqueFd fd_;
  std::string got_;
  bool succeeded_ = false;
};

}  // namespace stagelink::cli::bench
