#include <array>
#include <string>

#include "cli/bench/limit/vector_limit.h"
#include "cli/bench/network/network_groups.h"
#include "cli/bench/network/private_rig.h"

namespace stagelink::cli::bench {

namespace {

struct ReadCase {
  const char* name;
  const char* transport;
  Shape shape;
  double target;
};

constexpr std::array kCases = {
    ReadCase{"private-256", "auto", {256, 4096}, 2},
    ReadCase{"cma-4k", "cma", {4096, 4096}, 0.95},
    ReadCase{"cma-64k", "cma", {65536, 1024}, 0.95},
};

Status run_case(SuiteContext& context, Rig& rig, const ReadCase& item) {
  SL_ASSIGN(Session* const session, rig.session(MemoryKind::kPrivate));
  VectorLimit limit(rig.target().pid(), rig.remote().address,
                    rig.local(MemoryKind::kPrivate).bytes());
  SL_ASSIGN(const Measurement measured,
            measure(item.shape, {Rig::contender(*session, Op::kRead), limit.read()},
                    measure_options(context, rig)));
  SuiteContext::warn_if_disturbed(item.name, measured);
  SL_TRY(rig.verify(Op::kRead, MemoryKind::kPrivate, item.shape));
  context.add({.name = item.name,
               .value = measured.median_us(1) / measured.median_us(0),
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = item.target});
  return Status();
}

}  // namespace

Status run_private_group(SuiteContext& context) {
  std::string transport;
  Result<std::unique_ptr<Rig>> rig = Status(Reason::kNotFound, "not made yet");
  for (const ReadCase& item : kCases) {
    if (transport != item.transport) {
      transport = item.transport;
      rig = Status(Reason::kNotFound, "given back before the next one is made");
      rig = make_private_rig(context, transport);
    }
    if (!rig.ok()) {
      SuiteContext::leave_out(item.name, rig.status().message());
      continue;
    }
    SL_TRY(run_case(context, **rig, item));
  }
  return Status();
}

}  // namespace stagelink::cli::bench
