#include <array>
#include <cstring>
#include <thread>

#include "base/deadline.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

constexpr double kPolledTargetUs = 10;
constexpr double kAsleepTargetUs = 50;
// Of a core: what heartbeats cost, and nothing that comes from waiting.
constexpr double kAsleepCpuTarget = 500;
constexpr auto kSendTimeout = std::chrono::seconds(20);

// Sends the clock of the moment. A full ring is tried again until the deadline.
Status send_clock(Peer& peer, const Deadline& deadline) {
  for (;;) {
    const double sent_us = now_us();
    std::array<std::byte, sizeof sent_us> payload{};
    std::memcpy(payload.data(), &sent_us, sizeof sent_us);
    const Status status = peer.notify(payload);
    if (status.ok() || status.reason() != Reason::kRingFull || deadline.passed()) return status;
    std::this_thread::yield();
  }
}

// `pause` lies between two messages, so that each finds the receiver waiting.
Result<Latency> measure_latency(Rig& rig, uint64_t count, bool asleep, Duration pause) {
  SL_TRY(rig.target().begin_receive(count, asleep));
  const Deadline deadline = Deadline::in(kSendTimeout);
  for (uint64_t i = 0; i < count; ++i) {
    std::this_thread::sleep_for(pause);
    SL_TRY(send_clock(rig.peer(), deadline));
  }
  return rig.target().end_receive();
}

Result<double> cpu_us_per_second_asleep(TargetProcess& target) {
  constexpr auto kDuration = std::chrono::milliseconds(2000);
  const double cpu_us = cpu_time_us(target.pid());
  SL_TRY(target.begin_idle(kDuration));
  SL_TRY(target.end_idle());
  return (cpu_time_us(target.pid()) - cpu_us) / 2;
}

}  // namespace

Status run_notify_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_ASSIGN(const Latency polled,
            measure_latency(*rig, 2000, false, std::chrono::microseconds(100)));
  context.add({.name = "notify",
               .value = polled.p50_us,
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kPolledTargetUs});
  SL_ASSIGN(const Latency asleep, measure_latency(*rig, 500, true, std::chrono::milliseconds(3)));
  context.add({.name = "notify-asleep",
               .value = asleep.p50_us,
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kAsleepTargetUs});
  SL_ASSIGN(const double cpu_us, cpu_us_per_second_asleep(rig->target()));
  context.add({.name = "notify-asleep-cpu",
               .value = cpu_us,
               .unit = "us/s",
               .goal = Goal::kAtMost,
               .target = kAsleepCpuTarget});
  return Status();
}

}  // namespace stagelink::cli::bench
