#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace stagelink {

using Duration = std::chrono::nanoseconds;

// How hard the engine tries to get a property of memory. kTry falls back with one warning;
// kRequire fails and names the limit.
enum class Effort : uint8_t { kOff, kTry, kRequire };

// Settings of one engine. Every field has one row in the option table (config/option_table.h),
// which gives its name in files, environment, command line and docs; the default is the one here.
struct EngineOptions {
  // Identity and addresses.
  std::string name;                  // Empty: "engine-<pid>".
  std::string bind = "127.0.0.1:0";  // Where peers connect; port 0 takes any free one.
  std::string interface;             // Whose address `bind = "auto"` takes.
  std::string advertise;             // host[:port] told to peers; empty: the bound one.
  std::string runtime_dir;           // Sockets and counters; empty: see docs/operations.
  std::string secret_file;           // Peers must hold the same bytes; empty: no proof.
  std::vector<std::string> transports = {"shm", "cma", "unix", "tcp"};  // By preference.

  // Data path.
  uint64_t inline_bytes = 64 << 10;     // A batch up to this is copied by the submitter.
  uint64_t slice_bytes = 256 << 10;     // Unit of sharing, cancelling, deadline checks.
  uint32_t copy_threads = 1;            // 0: only the waiter copies.
  uint64_t streaming_min_bytes = 0;     // Non-temporal stores from here; 0: calibrated.
  uint64_t cma_min_run = 8 << 10;       // Private memory: cma from this mean run, else unix.
  bool allow_ptrace = false;            // Lets every process of the user use cma on us.
  uint32_t stream_stripes = 2;          // Data connections to one peer.
  uint64_t stripe_min_bytes = 4 << 20;  // A batch from this size on is spread over them.
  bool checksum = false;                // Sums on socket connections, if either side asks.

  // Bounds.
  uint32_t max_regions = 65536;
  uint32_t max_peers = 4096;
  uint32_t max_transfers = 1024;  // In flight, for the whole engine.
  uint32_t max_ranges = 1 << 20;  // In one batch.
  uint32_t max_notification_bytes = 8 << 10;

  // Deadlines.
  Duration connect_timeout = std::chrono::seconds(5);
  Duration transfer_timeout = std::chrono::seconds(30);
  Duration deregister_timeout = std::chrono::seconds(5);
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  uint32_t heartbeat_misses = 4;

  // Defaults for allocate().
  Effort pin = Effort::kOff;
  Effort huge_pages = Effort::kOff;
  Effort prefault = Effort::kTry;
  int32_t numa_node = -1;  // -1: wherever the kernel puts it.

  // Fault injection, for tests: 0 is off, else the seed of all faults. Rates are per million slices
  // (or frames).
  uint64_t fault_seed = 0;
  uint32_t fault_drop_ppm = 0;
  uint32_t fault_delay_ppm = 0;
  uint32_t fault_cut_ppm = 0;
  uint32_t fault_flip_ppm = 0;
};

}  // namespace stagelink
