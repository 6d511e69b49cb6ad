#include "engine/check_options.h"

#include <algorithm>

#include "transport/shm/notify_ring.h"
#include "transport/transport.h"
#include "wire/hello.h"

namespace stagelink::engine {
namespace {

Status bad(const char* option, const std::string& value, const std::string& expected) {
  return Status(Reason::kInvalidArgument,
                std::string("option ") + option + " = " + value + ": " + expected);
}

Status in_range(const char* option, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return Status();
  return bad(option, std::to_string(value),
             "must be from " + std::to_string(low) + " to " + std::to_string(high));
}

Status check_transports(const std::vector<std::string>& transports) {
  if (transports.empty()) return bad("transports", "[]", "name at least one of shm, unix");
  for (const std::string& name : transports) {
    if (name != transport::transport_name(transport::TransportKind::kShm) &&
        name != transport::transport_name(transport::TransportKind::kStream)) {
      return Status(Reason::kUnsupported,
                    "option transports: \"" + name + "\" is not available; choose from shm, unix");
    }
  }
  return Status();
}

}  // namespace

Status check_options(const EngineOptions& options) {
  SL_TRY(check_transports(options.transports));
  if (options.name.size() > wire::kMaxNameBytes) {
    return bad("name", options.name.substr(0, 32) + "...", "at most 128 bytes");
  }
  SL_TRY(in_range("slice_bytes", options.slice_bytes, 4096, 64 << 20));
  SL_TRY(in_range("copy_threads", options.copy_threads, 0, 64));
  SL_TRY(in_range("max_regions", options.max_regions, 1, 1 << 24));
  SL_TRY(in_range("max_peers", options.max_peers, 1, 1 << 16));
  SL_TRY(in_range("max_transfers", options.max_transfers, 1, 1 << 16));
  SL_TRY(in_range("max_ranges", options.max_ranges, 1, 1 << 24));
  SL_TRY(in_range("max_notification_bytes", options.max_notification_bytes, 1,
                  transport::kMaxNotifyBytes));
  SL_TRY(in_range("heartbeat_misses", options.heartbeat_misses, 1, 1000));
  using std::chrono::milliseconds;
  if (options.heartbeat_interval < milliseconds(10) ||
      options.heartbeat_interval > std::chrono::minutes(10)) {
    return bad("heartbeat_interval",
               std::to_string(options.heartbeat_interval / milliseconds(1)) + "ms",
               "must be from 10ms to 10min");
  }
  for (const auto& [name, value] : {std::pair("connect_timeout", options.connect_timeout),
                                    std::pair("transfer_timeout", options.transfer_timeout),
                                    std::pair("deregister_timeout", options.deregister_timeout)}) {
    if (value <= Duration::zero()) return bad(name, "0", "must be positive");
  }
  return Status();
}

Result<std::string> advertised_address(const EngineOptions& options, const Endpoint& bound) {
  if (options.advertise.empty()) {
    if (!bound.wildcard()) return bound.to_string();
    return bad("bind", options.bind,
               "a wildcard cannot be told to peers; set advertise to an address they can reach");
  }
  auto whole = parse_endpoint(options.advertise);
  if (!whole.ok()) {
    // A host alone: the port is the bound one.
    whole = parse_endpoint(options.advertise + ":" + std::to_string(bound.port));
  }
  if (!whole.ok()) return whole.status();
  if (whole->wildcard()) return bad("advertise", options.advertise, "must not be a wildcard");
  if (whole->port == 0) whole->port = bound.port;
  return whole->to_string();
}

}  // namespace stagelink::engine
