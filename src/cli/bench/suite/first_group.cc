#include <array>

#include "cli/bench/rig/percentile.h"
#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

constexpr int kRounds = 10;
constexpr int kWarmBatches = 5;
constexpr double kTarget = 3;
constexpr Shape kShape{.block_bytes = 4096, .blocks = 4096};

// A new engine connects, opens a session and reads: the first batch against the median of those
// after it.
Result<double> first_against_warm(Rig& rig, uint64_t round) {
  EngineOptions options;
  options.name = "bench-first";
  SL_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(options));
  const std::span<std::byte> bytes = rig.local(MemoryKind::kPrivate).bytes();
  SL_ASSIGN(const Region region, engine->register_memory(bytes.data(), bytes.size()));
  SL_ASSIGN(Peer peer, engine->connect(std::span(rig.target().descriptor())));
  const std::array<const Region*, 1> regions = {&region};
  SL_ASSIGN(Session session, peer.session(regions, std::span(&rig.remote(), 1)));

  const Contender read = Rig::contender(session, Op::kRead);
  Sample first;
  SL_TRY(read(make_picks(kShape, round * 100), first));
  std::vector<double> warm_us;
  for (int i = 1; i <= kWarmBatches; ++i) {
    Sample sample;
    SL_TRY(read(make_picks(kShape, round * 100 + static_cast<uint64_t>(i)), sample));
    warm_us.push_back(sample.wall_us);
  }
  return first.wall_us / percentile(warm_us, 0.5);
}

}  // namespace

Status run_first_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  std::vector<double> ratios;
  for (uint64_t round = 0; round < kRounds; ++round) {
    SL_ASSIGN(const double ratio, first_against_warm(*rig, round));
    ratios.push_back(ratio);
  }
  context.add({.name = "first",
               .value = percentile(ratios, 0.5),
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = kTarget});
  return Status();
}

}  // namespace stagelink::cli::bench
