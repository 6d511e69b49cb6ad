#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/random.h"
#include "memory/region_registry.h"
#include "metrics/engine_metrics.h"
#include "transport/poller.h"
#include "transport/stream/stream_channel.h"
#include "transport/stream/stream_server.h"

namespace stagelink::transport {

class FakeMetrics final : public metrics::EngineMetrics {
 public:
  void add(metrics::Counter counter, uint64_t value) noexcept override {
    if (counter == metrics::Counter::kServedBytes) served_bytes += value;
    if (counter == metrics::Counter::kFaultsInjected) faults += value;
  }
  void add(metrics::Gauge, int64_t) noexcept override {}
  void observe(metrics::Histogram, double) noexcept override {}
  void fail(Reason reason) noexcept override { last_failure = reason; }
  std::string prometheus_text() const override { return {}; }
  void close() noexcept override {}

  std::atomic<uint64_t> served_bytes{0};
  std::atomic<uint64_t> faults{0};
  std::atomic<Reason> last_failure{Reason::kOk};
};

inline std::pair<UniqueFd, UniqueFd> socket_pair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

inline void fill_random(std::span<std::byte> bytes, SplitMix64& random) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random.next();
    std::memcpy(&bytes[at], &word, std::min(sizeof(word), bytes.size() - at));
  }
}

// One call, where == looks at one byte after the other: these tests are not optimised.
inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// A request that remembers how it ended.
class TestRequest final : public PostedRequest {
 public:
  void on_done(Status outcome) override {
    status = std::move(outcome);
    if (then) then();
    ++ended;
  }
  bool done() const { return ended > 0; }

  std::vector<CopyItem> held;
  std::vector<RemoteRegionRef> held_regions;
  Status status;
  std::function<void()> then;
  std::atomic<int> ended{0};
};

// How the connection of a rig was agreed on.
enum class RigKind : uint8_t { kPlain, kChecked, kStaged };
inline const char* rig_name(RigKind kind) {
  switch (kind) {
    case RigKind::kPlain: return "Plain";
    case RigKind::kChecked: return "Checked";
    case RigKind::kStaged: return "Staged";
  }
  return "";
}

// What both ends of such a connection are told: the owner's, then the initiator's.
inline std::pair<StreamTraits, StreamTraits> traits_of(RigKind kind) {
  std::pair<StreamTraits, StreamTraits> traits;
  for (StreamTraits* end : {&traits.first, &traits.second}) {
    end->checked = kind == RigKind::kChecked;
    end->grouped = true;
  }
  if (kind == RigKind::kStaged) {
    auto area = StagingArea::create();
    EXPECT_TRUE(area.ok());
    auto theirs = StagingArea::open(area->take_fd());
    EXPECT_TRUE(theirs.ok());
    traits.first.staging.emplace(*std::move(area));
    traits.second.staging.emplace(*std::move(theirs));
  }
  return traits;
}

// Owner and initiator in one thread, stepped by hand, so that every interleaving is repeatable.
class StreamRig : private StreamChannel::Owner {
 public:
  explicit StreamRig(int send_buffer = 0, RigKind kind = RigKind::kPlain) {
    registry = std::move(*memory::RegionRegistry::create(random_instance_id(), 1024));
    owner_poller = std::move(*Poller::create());
    poller = std::move(*Poller::create());
    server = std::make_unique<StreamServer>(*owner_poller, *registry, metrics);
    auto [ours, theirs] = socket_pair();
    const int our_fd = ours.get();
    const int their_fd = theirs.get();
    auto [owner_traits, our_traits] = traits_of(kind);
    EXPECT_TRUE(server->serve(std::move(theirs), InstanceId{1, 2}, std::move(owner_traits)).ok());
    channel = StreamChannel::create(*poller, std::move(ours), *this, std::move(our_traits));
    if (send_buffer > 0) {
      ::setsockopt(our_fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof(send_buffer));
      ::setsockopt(their_fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof(send_buffer));
    }
  }
  ~StreamRig() { channel->close(Status(Reason::kClosed, "test over")); }

  std::shared_ptr<memory::RegionRecord> add_region(std::span<std::byte> bytes,
                                                   Access access = Access::kReadWrite) {
    return *registry->add(bytes.data(), bytes.size(), access);
  }
  void step_initiator() { poller->run_once(Duration::zero()); }
  void step_owner() { owner_poller->run_once(Duration::zero()); }
  void step() {
    step_initiator();
    step_owner();
  }
  // Steps until the request has ended; the bound is far above what any test needs.
  void finish(const TestRequest& request) {
    for (int i = 0; i < 1'000'000 && !request.done(); ++i) step();
    EXPECT_EQ(request.ended, 1);
  }
  void settle() {
    for (int i = 0; i < 100; ++i) step();
  }

  FakeMetrics metrics;
  std::unique_ptr<memory::RegionRegistry> registry;
  std::unique_ptr<Poller> owner_poller;
  std::unique_ptr<Poller> poller;
  std::unique_ptr<StreamServer> server;
  std::shared_ptr<StreamChannel> channel;
  std::optional<Status> lost;

 private:
  void on_lost(StreamChannel&, const Status& why) override {
    EXPECT_FALSE(lost.has_value());
    lost = why;
  }
};

inline RemoteRegionRef ref_of(const memory::RegionRecord& record) {
  return {record.desc.index, record.desc.generation};
}

// All of `local`, from the beginning of region 0: one piece, or on a staged connection small ones
// that do not lie in order, every other one first.
inline std::vector<CopyItem> items_of(std::span<std::byte> local, RigKind kind) {
  if (kind != RigKind::kStaged) return {{local.data(), 0, local.size(), 0}};
  constexpr size_t kPiece = 500;
  std::vector<CopyItem> items;
  for (const size_t first : {size_t{0}, kPiece}) {
    for (size_t at = first; at < local.size(); at += 2 * kPiece) {
      items.push_back({local.data() + at, at, std::min(kPiece, local.size() - at), 0});
    }
  }
  return items;
}

// Prepares `request` for `items`; the deadline is far away unless the test sets another.
inline void prepare(TestRequest& request, Direction direction, std::vector<CopyItem> items,
                    std::vector<RemoteRegionRef> regions) {
  request.held = std::move(items);
  request.held_regions = std::move(regions);
  request.items = request.held;
  request.remote_regions = request.held_regions;
  request.direction = direction;
  request.by_address = request.held_regions.empty();
  request.total_bytes = 0;
  for (const CopyItem& item : request.held) request.total_bytes += item.bytes;
  request.deadline = Deadline::in(std::chrono::seconds(60));
}

}  // namespace stagelink::transport
