#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/endpoint.h"
#include "cli/bench/rig/work_unit.h"
#include "cli/bench/target/control_channel.h"
#include "stagelink/region.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

struct TargetOptions {
  std::vector<std::string> transports;
  std::optional<int> core;         // Unset: wherever the kernel puts it.
  std::string huge_pages = "try";  // The engine's option of that name.
};

// The name of the hidden command that target_loop serves.
inline constexpr const char* kTargetCommand = "bench-target";
inline constexpr int kTargetSocket = 3;  // Where the child finds its end of the channel.

struct TargetRegion {
  uint64_t number = 0;  // By which the other calls name it.
  RegionDesc descriptor;
};

struct HostedEngine {
  std::vector<std::byte> engine;  // Its descriptor.
  RegionDesc region;
};

// Of write_dones with clocked ids.
struct Arrivals {
  double last_us = 0;  // By the clock of now_us().
  double p50_us = 0;
  double p99_us = 0;
};

struct Latency {
  double p50_us = 0;
  double p99_us = 0;
};

// The process that is read and written: this program again, with an engine of its own. It dies with
// its parent.
//
// Thread-safety: one thread at a time.
class TargetProcess {
 public:
  // Errors: limit; timed_out; whatever its engine answers.
  static Result<std::unique_ptr<TargetProcess>> start(const TargetOptions& options);
  TargetProcess(const TargetProcess&) = delete;
  TargetProcess& operator=(const TargetProcess&) = delete;
  ~TargetProcess();

  pid_t pid() const noexcept { return pid_; }
  const std::vector<std::byte>& descriptor() const noexcept { return descriptor_; }

  Result<TargetRegion> allocate(uint64_t bytes);
  // Private memory of the target, registered with its engine.
  Result<TargetRegion> register_private(uint64_t bytes);
  // One more engine there, with a region of its own.
  Result<HostedEngine> host(uint64_t bytes);
  // The target's share of the machine's memory (Pss).
  Result<uint64_t> memory_bytes();
  Status fill(uint64_t region, uint64_t salt);
  Status poison(uint64_t region, const Shape& shape, uint64_t seed);
  // How many of the blocks at the remote picks hold what the local picks of a filled region hold.
  Result<uint64_t> count_right(uint64_t region, const Shape& shape, uint64_t seed, uint64_t salt);

  // The target receives `count` notifications, which carry the sender's clock. Between the two
  // calls the caller sends them.
  Status begin_receive(uint64_t count, bool asleep);
  Result<Latency> end_receive();
  // The target connects to `port` and serves that connection until it ends (SocketLimit).
  Status begin_socket(uint64_t region, uint16_t port);
  Status end_socket();
  // The notify port of a decode rank; one for each target.
  Result<Endpoint> listen();
  // Between the two calls the caller causes `count` write_dones.
  Status begin_arrivals(uint64_t count);
  Result<Arrivals> end_arrivals();
  Status begin_idle(std::chrono::milliseconds duration);
  Status end_idle();

 private:
  TargetProcess(pid_t pid, ControlChannel channel) noexcept;
  Result<TargetRegion> make_region(Request request, uint64_t bytes);
  Status begin(const Message& message);
  Result<Message> end();
  Result<Message> ask(const Message& message);

  pid_t pid_;
  ControlChannel channel_;
  std::vector<std::byte> descriptor_;
};

}  // namespace stagelink::cli::bench
