#include <array>
#include <string>

#include <fmt/format.h>

#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

struct CopyCase {
  const char* name;
  Shape shape;
  double streaming_target;  // 0: no row against streaming stores.
};

constexpr std::array kCases = {
    CopyCase{"shm-256", {256, 4096}, 0},
    CopyCase{"shm-4k", {4096, 4096}, 0.65},
    CopyCase{"shm-16k", {16384, 4096}, 0.65},
    CopyCase{"shm-64k", {65536, 1024}, 0.85},
};

constexpr double kPrivateTarget = 1.0;
constexpr double kShareableTarget = 0.95;

Status run_case(SuiteContext& context, const CopyCase& item, Op op, MemoryKind memory) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_ASSIGN(CopyLimit* const limit, context.limit());
  SL_ASSIGN(Session* const session, rig->session(memory));
  const bool streaming =
      op == Op::kRead && memory == MemoryKind::kPrivate && item.streaming_target > 0;
  std::vector<Contender> contenders = {Rig::contender(*session, op), limit->plain()};
  if (streaming) contenders.push_back(limit->streaming());

  std::string name = item.name;
  if (memory == MemoryKind::kShareable) name += "-alloc";
  if (op == Op::kWrite) name += "-write";
  SL_ASSIGN(const Measurement measured, measure(item.shape, contenders, context.measure_options()));
  SuiteContext::warn_if_disturbed(name, measured);
  SL_TRY(rig->verify(op, memory, item.shape));
  const double ours_us = measured.median_us(0);
  context.add({.name = name,
               .value = measured.median_us(1) / ours_us,
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = memory == MemoryKind::kPrivate ? kPrivateTarget : kShareableTarget});
  if (streaming) {
    context.add({.name = name + "-nt",
                 .value = measured.median_us(2) / ours_us,
                 .unit = "x",
                 .goal = Goal::kAtLeast,
                 .target = item.streaming_target});
  }
  return Status();
}

}  // namespace

Status run_copy_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  for (const Op op : {Op::kRead, Op::kWrite}) {
    for (const MemoryKind memory : {MemoryKind::kPrivate, MemoryKind::kShareable}) {
      SL_TRY(rig->prepare(op, memory));
      for (const CopyCase& item : kCases) SL_TRY(run_case(context, item, op, memory));
    }
  }
  return Status();
}

}  // namespace stagelink::cli::bench
