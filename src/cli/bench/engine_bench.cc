#include "cli/bench/engine_bench.h"

#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/rig/copy_limit.h"

namespace stagelink::cli::bench {

namespace {

const char* name_of(Op op) noexcept { return op == Op::kRead ? "read" : "write"; }
const char* name_of(MemoryKind memory) noexcept {
  return memory == MemoryKind::kPrivate ? "private" : "shareable";
}

RigOptions rig_options(const EngineBenchOptions& options) {
  RigOptions out;
  if (options.transport != "auto") out.transports = {options.transport};
  out.remote = options.target_memory;
  out.pin = options.pin;
  out.huge_pages = options.huge_pages;
  return out;
}

}  // namespace

double EngineBenchReport::gb_per_s() const noexcept {
  return p50_us > 0 ? static_cast<double>(options.shape.bytes()) / p50_us * 1e-3 : 0;
}

double EngineBenchReport::ratio_to_limit() const noexcept {
  return p50_us > 0 ? limit_p50_us / p50_us : 0;
}

std::string EngineBenchReport::json() const {
  return nlohmann::ordered_json{{"transport", options.transport},
                                {"op", name_of(options.op)},
                                {"memory", name_of(options.memory)},
                                {"target_memory", name_of(options.target_memory)},
                                {"block_bytes", options.shape.block_bytes},
                                {"blocks", options.shape.blocks},
                                {"huge_pages", options.huge_pages},
                                {"repetitions", repetitions},
                                {"dropped", dropped},
                                {"quiet", quiet},
                                {"p50_us", p50_us},
                                {"p99_us", p99_us},
                                {"submit_p50_us", submit_p50_us},
                                {"gb_per_s", gb_per_s()},
                                {"limit_p50_us", limit_p50_us},
                                {"ratio_to_limit", ratio_to_limit()},
                                {"cpu_us_initiator", cpu_us_initiator},
                                {"cpu_us_target", cpu_us_target},
                                {"route", route}}
      .dump(2);
}

std::string EngineBenchReport::table() const {
  std::string out =
      fmt::format("{} of {} blocks of {} bytes over {}, {} memory here, {} there\n",
                  name_of(options.op), options.shape.blocks, options.shape.block_bytes,
                  options.transport, name_of(options.memory), name_of(options.target_memory));
  out += fmt::format("  {}\n", route);
  out += fmt::format("  huge pages: {}\n", options.huge_pages);
  out += fmt::format("  batch      p50 {:.1f} us, p99 {:.1f} us, {:.2f} GB/s\n", p50_us, p99_us,
                     gb_per_s());
  out += fmt::format("  submit     p50 {:.1f} us\n", submit_p50_us);
  out += fmt::format("  memcpy     p50 {:.1f} us within one process; ratio {:.2f}\n", limit_p50_us,
                     ratio_to_limit());
  out += fmt::format("  CPU        {:.1f} us here, {:.1f} us in the target\n", cpu_us_initiator,
                     cpu_us_target);
  out += fmt::format("  {} repetitions, {} disturbed ones dropped, every byte compared{}\n",
                     repetitions, dropped, quiet ? "" : "; the machine was busy");
  return out;
}

Result<EngineBenchReport> run_engine_bench(const EngineBenchOptions& options) {
  SL_TRY(check_shape(options.shape));
  SL_ASSIGN(const std::unique_ptr<Rig> rig, Rig::create(rig_options(options)));
  SL_ASSIGN(CopyLimit limit, CopyLimit::create());
  SL_ASSIGN(Session* const session, rig->session(options.memory));
  SL_TRY(rig->prepare(options.op, options.memory));
  MeasureOptions measure_options;
  measure_options.repetitions = options.repetitions;
  measure_options.target = rig->target().pid();
  SL_ASSIGN(const Measurement measured,
            measure(options.shape, {Rig::contender(*session, options.op), limit.plain()},
                    measure_options));
  SL_TRY(rig->verify(options.op, options.memory, options.shape));

  EngineBenchReport report;
  report.options = options;
  report.route = session->explain();
  while (!report.route.empty() && report.route.back() == '\n') report.route.pop_back();
  report.repetitions = static_cast<uint32_t>(measured.samples[0].size());
  report.dropped = measured.dropped;
  report.quiet = measured.quiet;
  report.p50_us = measured.p(0, &Sample::wall_us, 0.5);
  report.p99_us = measured.p(0, &Sample::wall_us, 0.99);
  report.submit_p50_us = measured.p(0, &Sample::submit_us, 0.5);
  report.limit_p50_us = measured.median_us(1);
  report.cpu_us_initiator = measured.p(0, &Sample::cpu_initiator_us, 0.5);
  report.cpu_us_target = measured.p(0, &Sample::cpu_target_us, 0.5);
  return report;
}

}  // namespace stagelink::cli::bench
