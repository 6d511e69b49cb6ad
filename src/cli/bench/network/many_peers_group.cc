#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "cli/bench/network/network_groups.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/private_memory.h"
#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

namespace {

constexpr size_t kPeers = 1000;
constexpr size_t kTargets = 7;  // With this one: 8 processes.
constexpr uint64_t kHostedBytes = 256 << 10;
constexpr Shape kShape{.block_bytes = 4096, .blocks = 64, .most_slots = 64};
constexpr size_t kBatches = 400;
constexpr double kTimeTarget = 1.2;
constexpr double kMemoryTargetKib = 64;

// An engine of this process, with as many of the hosted ones connected as it is told to.
//
// Thread-safety: one thread.
class Initiator {
 public:
  static Result<std::unique_ptr<Initiator>> create(const char* name, std::span<std::byte> memory) {
    std::unique_ptr<Initiator> initiator(new Initiator());
    EngineOptions options;
    options.name = name;
    options.transports = {"tcp"};
    SL_ASSIGN(initiator->engine_, Engine::create(options));
    SL_ASSIGN(Region region, initiator->engine_->register_memory(memory.data(), memory.size()));
    initiator->region_.emplace(std::move(region));
    return initiator;
  }

  // Connects, opens a session and reads once, so that all that a peer in use costs is there.
  Status add(const HostedEngine& hosted) {
    SL_ASSIGN(Peer peer, engine_->connect(std::span(hosted.engine)));
    const std::array<const Region*, 1> regions = {&*region_};
    SL_ASSIGN(Session session, peer.session(regions, std::span(&hosted.region, 1)));
    sessions_.push_back(std::move(session));
    peers_.push_back(std::move(peer));
    return submit_us(sessions_.size() - 1).status();
  }

  // How long submitting one batch to a peer takes; the batch has ended on return.
  Result<double> submit_us(size_t peer) {
    const double start_us = now_us();
    SL_ASSIGN(Transfer transfer, sessions_[peer].read(picks_.ranges()));
    const double us = now_us() - start_us;
    SL_TRY(transfer.wait());
    return us;
  }

 private:
  Initiator() : picks_(make_picks(kShape, 1)) {}
  std::unique_ptr<Engine> engine_;
  std::optional<Region> region_;
  std::vector<Peer> peers_;
  std::vector<Session> sessions_;
  const Picks picks_;
};

Result<uint64_t> memory_of_all(const std::vector<std::unique_ptr<TargetProcess>>& targets) {
  uint64_t bytes = memory_share_bytes();
  for (const auto& target : targets) {
    SL_ASSIGN(const uint64_t share, target->memory_bytes());
    bytes += share;
  }
  return bytes;
}

// Two engines take turns in submitting to the same peer: one knows it alone, the other all.
Result<double> time_against_one(Initiator& one, Initiator& all) {
  std::vector<double> one_us;
  std::vector<double> all_us;
  for (size_t i = 0; i < kBatches; ++i) {
    SL_ASSIGN(const double first_us, one.submit_us(0));
    SL_ASSIGN(const double second_us, all.submit_us(0));
    one_us.push_back(first_us);
    all_us.push_back(second_us);
  }
  return percentile(std::move(all_us), 0.5) / percentile(std::move(one_us), 0.5);
}

Status measure_peers(SuiteContext& context) {
  std::vector<std::unique_ptr<TargetProcess>> targets;
  for (size_t i = 0; i < kTargets; ++i) {
    SL_ASSIGN(auto target, TargetProcess::start({.transports = {"tcp"}, .core = std::nullopt}));
    targets.push_back(std::move(target));
  }
  std::vector<HostedEngine> hosted;
  for (size_t i = 0; i < kPeers; ++i) {
    SL_ASSIGN(HostedEngine engine, targets[i % kTargets]->host(kHostedBytes));
    hosted.push_back(std::move(engine));
  }
  SL_ASSIGN(const PrivateMemory memory, PrivateMemory::create(kHostedBytes));
  SL_ASSIGN(const auto one, Initiator::create("bench-one-peer", memory.bytes()));
  SL_TRY(one->add(hosted[0]));
  SL_ASSIGN(const auto all, Initiator::create("bench-all-peers", memory.bytes()));
  SL_ASSIGN(const uint64_t before, memory_of_all(targets));
  for (const HostedEngine& engine : hosted) SL_TRY(all->add(engine));
  SL_ASSIGN(const uint64_t after, memory_of_all(targets));
  SL_ASSIGN(const double ratio, time_against_one(*one, *all));
  context.add({.name = "peers-1000",
               .value = ratio,
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = kTimeTarget});
  const double grown = static_cast<double>(after) - static_cast<double>(before);
  context.add({.name = "peers-1000-memory",
               .value = grown / static_cast<double>(kPeers) / 1024,
               .unit = "KiB",
               .goal = Goal::kAtMost,
               .target = kMemoryTargetKib});
  return Status();
}

}  // namespace

Status run_many_peers_group(SuiteContext& context) {
  context.drop_rig();
  raise_file_limit();
  const Status measured = measure_peers(context);
  // A machine may not allow so many descriptors or threads, or have no TCP.
  if (measured.scope() != Scope::kCall) return measured;
  SuiteContext::leave_out("peers-1000", measured.message());
  return Status();
}

}  // namespace stagelink::cli::bench
