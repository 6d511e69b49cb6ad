#include <thread>

#include "base/deadline.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

constexpr auto kWindow = std::chrono::seconds(2);
// How far two measurements of an idle engine lie apart: a few wake-ups for heartbeats.
constexpr double kToleranceUsPerSecond = 100;

double per_second(double cpu_us, double wall_us) noexcept { return cpu_us / wall_us * 1e6; }

Result<double> target_cpu_while_read(Rig& rig, Session& session) {
  const Picks picks = make_picks({.block_bytes = 4096, .blocks = 4096}, 5);
  const Contender read = Rig::contender(session, Op::kRead);
  const Deadline deadline = Deadline::in(kWindow);
  const double start_us = now_us();
  const double cpu_us = cpu_time_us(rig.target().pid());
  while (!deadline.passed()) {
    Sample sample;
    SL_TRY(read(picks, sample));
  }
  return per_second(cpu_time_us(rig.target().pid()) - cpu_us, now_us() - start_us);
}

double target_cpu_while_idle(Rig& rig) {
  const double start_us = now_us();
  const double cpu_us = cpu_time_us(rig.target().pid());
  std::this_thread::sleep_for(kWindow);
  return per_second(cpu_time_us(rig.target().pid()) - cpu_us, now_us() - start_us);
}

}  // namespace

Status run_hot_path_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_ASSIGN(Session* const session, rig->session(MemoryKind::kPrivate));
  const double idle = target_cpu_while_idle(*rig);
  SL_ASSIGN(const double busy, target_cpu_while_read(*rig, *session));
  context.add({.name = "hot-path",
               .value = busy,
               .unit = "us/s",
               .goal = Goal::kAtMost,
               .target = idle + kToleranceUsPerSecond});
  return Status();
}

}  // namespace stagelink::cli::bench
