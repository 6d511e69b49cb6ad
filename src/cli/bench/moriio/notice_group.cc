#include <thread>

#include <unistd.h>

#include "cli/bench/moriio/moriio_groups.h"
#include "cli/bench/moriio/notice_log.h"
#include "cli/bench/moriio/producer.h"
#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

namespace {

constexpr uint64_t kNotices = 500;
constexpr auto kPause = std::chrono::milliseconds(3);  // Both sides are asleep by then.
constexpr auto kIdle = std::chrono::seconds(2);
constexpr auto kTimeout = std::chrono::seconds(5);

constexpr double kTargetUs = 100;
// Of a core, both processes together: heartbeats, and nothing that comes from waiting.
constexpr double kIdleCpuTarget = 5000;

double cpu_us(Rig& rig) { return cpu_time_us(::getpid()) + cpu_time_us(rig.target().pid()); }

}  // namespace

Status run_notice_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_ASSIGN(const Endpoint notify, rig->target().listen());
  Producer producer;
  moriio::Wrapper& wrapper = producer.wrapper();
  SL_TRY(wrapper.notify_and_wait(notify, moriio::WriteDone{clocked_id(0, now_us()), {}}, kTimeout));
  SL_TRY(rig->target().begin_arrivals(kNotices + 1));
  for (uint64_t i = 1; i <= kNotices; ++i) {
    std::this_thread::sleep_for(kPause);
    SL_TRY(wrapper.notify(notify, moriio::WriteDone{clocked_id(i, now_us()), {}}));
  }
  SL_ASSIGN(const Arrivals arrivals, rig->target().end_arrivals());
  context.add({.name = "notify",
               .value = arrivals.p50_us,
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kTargetUs});

  const double before_us = cpu_us(*rig);
  std::this_thread::sleep_for(kIdle);
  context.add({.name = "notify-idle-cpu",
               .value = (cpu_us(*rig) - before_us) / std::chrono::duration<double>(kIdle).count(),
               .unit = "us/s",
               .goal = Goal::kAtMost,
               .target = kIdleCpuTarget});
  return Status();
}

}  // namespace stagelink::cli::bench
