#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "stagelink/region.h"
#include "stagelink/result.h"
#include "stagelink/status.h"

namespace stagelink::metrics {

// Names in Prometheus: stagelink_<name>_total for counters, stagelink_<name> for gauges.
enum class Counter : uint8_t {
  kTransfersStarted,    // transfers_started
  kTransfersSucceeded,  // transfers_succeeded
  kReadBytes,           // read_bytes (successes only)
  kWrittenBytes,        // written_bytes
  kShmBytes,            // shm_bytes
  kCmaBytes,            // cma_bytes
  kUnixBytes,           // unix_bytes: by stream over the peer's UNIX socket
  kTcpBytes,            // tcp_bytes
  kServedBytes,         // served_bytes: moved by our stream server for peers
  kNotificationsSent,
  kNotificationsReceived,
  kDuplicateCompletions,
  kPeersConnected,
  kPeersLost,
  kHandshakesRefused,
  kFaultsInjected,
};
enum class Gauge : uint8_t {
  kRegions,
  kRegisteredBytes,
  kAllocatedBytes,
  kMappedBytes,   // Of peers' memory, here.
  kPeers,         // That we connected to.
  kInboundPeers,  // That connected to us.
  kTransfersInFlight,
  kRetiringRegions,  // Deregistered, but a peer was still inside.
};
enum class Histogram : uint8_t {
  kTransferSeconds,  // transfer_duration_seconds, of successes
  kTransferBytes,    // transfer_size_bytes
};

// All counters of one engine, in a file that `stagelink stat` maps read-only:
// <runtime_dir>/<pid>-<first 8 digits of the instance>.stat. Adding is one relaxed atomic add. A
// broken or missing file never fails the engine: counters then live in private memory, with one
// warning.
//
// Thread-safety: all methods may run at the same time.
class EngineMetrics {
 public:
  static std::unique_ptr<EngineMetrics> create(const std::string& runtime_dir,
                                               const std::string& engine_name, InstanceId instance);
  virtual ~EngineMetrics() = default;

  virtual void add(Counter counter, uint64_t value = 1) noexcept = 0;
  virtual void add(Gauge gauge, int64_t delta) noexcept = 0;
  virtual void observe(Histogram histogram, double value) noexcept = 0;
  // stagelink_failures_total{code,scope,reason}
  virtual void fail(Reason reason) noexcept = 0;

  virtual std::string prometheus_text() const = 0;
  // Removes the file. In a forked child: call nothing.
  virtual void close() noexcept = 0;
};

}  // namespace stagelink::metrics
