#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <sys/socket.h>

#include "base/log.h"
#include "base/random.h"
#include "memory/region_registry.h"
#include "metrics/engine_metrics.h"
#include "transport/poller.h"
#include "transport/stream/stream_server.h"

namespace stagelink::fuzz {

inline constexpr size_t kRegionBytes = 4096;
inline constexpr auto kCanary = std::byte{0x5a};

class NoMetrics final : public metrics::EngineMetrics {
 public:
  void add(metrics::Counter, uint64_t) noexcept override {}
  void add(metrics::Gauge, int64_t) noexcept override {}
  void observe(metrics::Histogram, double) noexcept override {}
  void fail(Reason) noexcept override {}
  std::string prometheus_text() const override { return {}; }
  void close() noexcept override {}
};

// One owner with a region that peers may write, between two canaries.
struct Victim {
  Victim() : memory(3 * kRegionBytes, kCanary) {
    set_log_level(LogLevel::kOff);
    registry = *memory::RegionRegistry::create(InstanceId{1, 2}, 16);
    poller = *transport::Poller::create();
    server = std::make_unique<transport::StreamServer>(*poller, *registry, metrics);
    region = *registry->add(memory.data() + kRegionBytes, kRegionBytes, Access::kReadWrite);
  }
  std::vector<std::byte> memory;
  NoMetrics metrics;
  std::unique_ptr<memory::RegionRegistry> registry;
  std::unique_ptr<transport::Poller> poller;
  std::unique_ptr<transport::StreamServer> server;
  std::shared_ptr<memory::RegionRecord> region;
};

enum class Connection : uint8_t { kPlain, kChecked, kStaged };

inline transport::StreamTraits traits_of(Connection connection, std::span<const std::byte> bytes) {
  transport::StreamTraits traits{.checked = connection == Connection::kChecked};
  if (connection != Connection::kStaged) return traits;
  auto area = transport::StagingArea::create();
  if (!area.ok()) std::abort();
  const size_t size = std::min(bytes.size(), area->from_initiator().size());
  if (size > 0) std::memcpy(area->from_initiator().data(), bytes.data(), size);
  traits.staging.emplace(*std::move(area));
  return traits;
}

// Sends `bytes` on a data connection of the victim; then nothing outside its region has changed,
// and nothing of the peer is left.
inline void attack(Victim& victim, std::span<const std::byte> bytes, Connection connection) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) return;
  UniqueFd peer(fds[0]);
  const auto served =
      victim.server->serve(UniqueFd(fds[1]), InstanceId{3, 4}, traits_of(connection, bytes));
  if (!served.ok()) std::abort();
  std::byte answers[4096];
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(peer.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n > 0) sent += static_cast<size_t>(n);
    victim.poller->run_once(Duration::zero());
    if (n < 0 && ::recv(peer.get(), answers, sizeof(answers), 0) == 0) break;
    if (victim.server->connections() == 0) break;
  }
  for (int i = 0; i < 4; ++i) victim.poller->run_once(Duration::zero());
  peer.reset();
  for (int i = 0; i < 4; ++i) victim.poller->run_once(Duration::zero());
  victim.server->drop(InstanceId{3, 4});
  if (victim.region->gate.pins() != 0) std::abort();
  for (size_t i = 0; i < kRegionBytes; ++i) {
    if (victim.memory[i] != kCanary || victim.memory[2 * kRegionBytes + i] != kCanary) std::abort();
  }
}

}  // namespace stagelink::fuzz
