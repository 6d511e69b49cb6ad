#include <array>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/store/store_groups.h"
#include "cli/bench/store/store_pair.h"
#include "cli/bench/store/store_script.h"

namespace stagelink::cli::bench {

namespace {

constexpr size_t kSmallBytes = 1024;
constexpr uint32_t kSmallRounds = 4000;
constexpr double kOverOmniTarget = 10;
// A fiftieth of what an exclusive connection to a worker takes on a quiet machine of two cores.
constexpr double kSmallTargetUs = 9;
constexpr double kPutOverMemcpyTarget = 1.25;
constexpr double kLargeGetTargetUs = 20;
constexpr uint32_t kWakes = 500;
constexpr double kWakeTargetUs = 50;
// Of a core: one look a second, should a wake-up ever be lost.
constexpr double kWakeCpuTarget = 500;

std::string small_key(uint32_t round) { return fmt::format("request-{}:0_1", round); }

// Puts in one process, gets in the other, the object there before the get: the median of the sum.
Result<double> small_us(const StoreOptions& options, uint32_t rounds) {
  SL_ASSIGN(const auto pair,
            StorePair::start(options, [rounds](ObjectStore& store, PairPage& page) -> Status {
              const std::vector<std::byte> from(kSmallBytes, std::byte{7});
              for (uint32_t round = 0; round < rounds; ++round) {
                if (!page.wait_for(2 * round + 1)) return Status(Reason::kTimedOut, "no turn");
                const std::string key = small_key(round);
                const double start_us = now_us();
                SL_TRY(store.put(key, from).status());
                page.figures[round] = now_us() - start_us;
                page.set(2 * round + 2);
              }
              // Until the last object was got.
              return page.wait_for(2 * rounds + 1) ? Status()
                                                   : Status(Reason::kTimedOut, "no turn");
            }));
  SL_ASSIGN(const auto store, ObjectStore::open(options));
  PairPage& page = pair->page();
  std::vector<double> took_us(rounds);
  for (uint32_t round = 0; round < rounds; ++round) {
    page.set(2 * round + 1);
    if (!page.wait_for(2 * round + 2))
      return Status(Reason::kTimedOut, "the other process is lost");
    const std::string key = small_key(round);
    const double start_us = now_us();
    SL_ASSIGN(const ObjectView view, store->get(key));
    took_us[round] = page.figures[round] + now_us() - start_us;
    if (view.bytes().size() != kSmallBytes) return Status(Reason::kCorrupt, "not what was put");
    SL_TRY(store->erase(key));
  }
  page.set(2 * rounds + 1);
  return percentile(std::move(took_us), 0.5);
}

void compare_with_omni(SuiteContext& context, double ours_us) {
  const std::string python = context.beside_sources("build/omni-venv/bin/python", "");
  if (python.empty()) {
    return SuiteContext::leave_out("small-omni-shm", "there is no build/omni-venv");
  }
  const auto printed = numbers_of(context, "small-omni-shm", "store_omni_shm.py", python);
  if (!printed.is_object() || !printed.contains("p50_us")) return;
  context.add({.name = "small-omni-shm",
               .value = printed["p50_us"].get<double>() / ours_us,
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = kOverOmniTarget});
}

// The child waits for one key after the other; what is put is the moment of the seal.
Result<std::vector<double>> wakes_us(const StoreOptions& options, double& idle_cpu) {
  constexpr auto kPause = std::chrono::milliseconds(3);  // The other one sleeps by then.
  constexpr auto kIdle = std::chrono::seconds(2);
  constexpr uint32_t kIdleRound = 10;  // Both are warm by then.
  SL_ASSIGN(
      const auto pair, StorePair::start(options, [](ObjectStore& store, PairPage& page) -> Status {
        for (uint32_t round = 0; round < kWakes; ++round) {
          page.set(round + 1);
          SL_ASSIGN(const ObjectView view, store.get(small_key(round), std::chrono::seconds(20)));
          const double woken_us = now_us();
          double sealed_us = 0;
          std::memcpy(&sealed_us, view.bytes().data(), sizeof sealed_us);
          page.figures[round] = woken_us - sealed_us;
        }
        page.set(kWakes + 1);
        return Status();
      }));
  SL_ASSIGN(const auto store, ObjectStore::open(options));
  PairPage& page = pair->page();
  for (uint32_t round = 0; round < kWakes; ++round) {
    if (!page.wait_for(round + 1)) return Status(Reason::kTimedOut, "the other process is lost");
    std::this_thread::sleep_for(kPause);
    if (round == kIdleRound) {
      const double before_us = cpu_time_us(pair->pid());
      std::this_thread::sleep_for(kIdle);
      idle_cpu =
          (cpu_time_us(pair->pid()) - before_us) / std::chrono::duration<double>(kIdle).count();
    }
    SL_ASSIGN(ObjectWriter writer, store->create(small_key(round), sizeof(double)));
    const double sealed_us = now_us();
    std::memcpy(writer.pieces()[0].data(), &sealed_us, sizeof sealed_us);
    SL_TRY(writer.seal());
  }
  if (!page.wait_for(kWakes + 1)) return Status(Reason::kTimedOut, "the other process is lost");
  return std::vector<double>(page.figures, page.figures + kWakes);
}

}  // namespace

Status run_store_small_group(SuiteContext& context) {
  SL_ASSIGN(const double ours_us, small_us(bench_store_options(16 << 20), kSmallRounds));
  context.add({.name = "small",
               .value = ours_us,
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kSmallTargetUs});
  compare_with_omni(context, ours_us);
  return Status();
}

Status run_store_large_group(SuiteContext& context) {
  const auto printed =
      numbers_of(context, "large-put large-get", "store_large.py", store_python(context));
  if (!printed.is_object() || !printed.contains("put_over_memcpy") || !printed.contains("get_us")) {
    return Status();
  }
  context.add({.name = "large-put",
               .value = printed["put_over_memcpy"].get<double>(),
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = kPutOverMemcpyTarget});
  context.add({.name = "large-get",
               .value = printed["get_us"].get<double>(),
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kLargeGetTargetUs});
  return Status();
}

Status run_store_wake_group(SuiteContext& context) {
  double idle_cpu = 0;
  SL_ASSIGN(auto took_us, wakes_us(bench_store_options(16 << 20), idle_cpu));
  context.add({.name = "wake",
               .value = percentile(std::move(took_us), 0.5),
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kWakeTargetUs});
  context.add({.name = "wake-cpu",
               .value = idle_cpu,
               .unit = "us/s",
               .goal = Goal::kAtMost,
               .target = kWakeCpuTarget});
  return Status();
}

}  // namespace stagelink::cli::bench
