#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <optional>
#include <vector>

#include "cli/bench/moriio/moriio_groups.h"
#include "cli/bench/moriio/notice_log.h"
#include "cli/bench/moriio/producer.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

namespace {

constexpr size_t kTransfers = 1000;
constexpr size_t kToTheDead = 100;  // Every tenth.
constexpr int kRounds = 5;
constexpr Shape kShape{.block_bytes = 32 << 10, .blocks = 4};
constexpr uint64_t kDeadBytes = 64 << 20;
constexpr double kTarget = 2;

std::shared_ptr<Session> borrowed(Session& session) {
  return std::shared_ptr<Session>(std::shared_ptr<void>(), &session);
}

// A decode process that can be killed.
struct Mortal {
  std::unique_ptr<TargetProcess> process;
  std::optional<Peer> peer;
  std::shared_ptr<Session> session;  // The producer keeps it, too.
  size_t consumer = 0;
};

Result<Mortal> start_mortal(Rig& rig, Producer& producer) {
  Mortal mortal;
  SL_ASSIGN(mortal.process, TargetProcess::start({.transports = rig.engine().options().transports,
                                                  .core = std::nullopt,
                                                  .huge_pages = "off"}));
  SL_ASSIGN(const TargetRegion region, mortal.process->allocate(kDeadBytes));
  SL_ASSIGN(Endpoint notify, mortal.process->listen());
  SL_ASSIGN(Peer peer, rig.engine().connect(std::span(mortal.process->descriptor())));
  mortal.peer.emplace(std::move(peer));
  const std::array<const Region*, 1> local = {&rig.local(MemoryKind::kShareable)};
  SL_ASSIGN(Session session, mortal.peer->session(local, std::span(&region.descriptor, 1)));
  mortal.session = std::make_shared<Session>(std::move(session));
  mortal.consumer = producer.add({mortal.session, std::move(notify)});
  return mortal;
}

// Begins all transfers at once, every tenth to `dead` if there is one; p99 of those to the living.
Result<double> p99_us(Rig& rig, Producer& producer, const std::vector<Picks>& picks,
                      const Mortal* dead) {
  static uint64_t number = 0;
  std::vector<Write> writes;
  SL_TRY(rig.target().begin_arrivals(kTransfers - kToTheDead));
  for (size_t i = 0; i < kTransfers; ++i) {
    const bool lost = i % (kTransfers / kToTheDead) == 0;
    if (lost && dead == nullptr) continue;
    writes.push_back({.transfer_id = clocked_id(++number, now_us()),
                      .picks = &picks[i],
                      .layers = 1,
                      .consumer = lost ? dead->consumer : 0});
    producer.allocate(writes.back());
    SL_TRY(producer.save(writes.back()));
  }
  SL_ASSIGN(const Arrivals arrivals, rig.target().end_arrivals());
  for (const Write& write : writes) SL_TRY(producer.abort(write));
  return arrivals.p99_us;
}

}  // namespace

Status run_isolation_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_ASSIGN(Session* const session, rig->session(MemoryKind::kShareable));
  SL_ASSIGN(Endpoint notify, rig->target().listen());
  Producer producer;
  producer.add({borrowed(*session), std::move(notify)});
  std::vector<Picks> picks;
  for (size_t i = 0; i < kTransfers; ++i) {
    // Within the region of the smaller peer.
    picks.push_back(make_picks({.block_bytes = kShape.block_bytes,
                                .blocks = kShape.blocks,
                                .most_slots = kDeadBytes / kShape.block_bytes},
                               i));
  }
  SL_TRY(p99_us(*rig, producer, picks, nullptr).status());  // Connections are made.
  std::vector<double> without;
  std::vector<double> with;
  for (int round = 0; round < kRounds; ++round) {
    SL_ASSIGN(const double alone_us, p99_us(*rig, producer, picks, nullptr));
    without.push_back(alone_us);
    SL_ASSIGN(const Mortal dead, start_mortal(*rig, producer));
    ::kill(dead.process->pid(), SIGKILL);
    SL_ASSIGN(const double beside_us, p99_us(*rig, producer, picks, &dead));
    with.push_back(beside_us);
  }
  context.add({.name = "isolation",
               .value = percentile(std::move(with), 0.5) / percentile(std::move(without), 0.5),
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = kTarget});
  return Status();
}

}  // namespace stagelink::cli::bench
