#include <array>

#include "cli/bench/suite/groups.h"
#include "cli/bench/suite/peer_run.h"

namespace stagelink::cli::bench {

namespace {

struct PeerCase {
  const char* name;
  const char* script;
  Shape shape;
  double target;
};

constexpr std::array kPeerCases = {
    PeerCase{"shm-256-nixl", "nixl_peer.py", {256, 4096}, 30},
    PeerCase{"shm-4k-nixl", "nixl_peer.py", {4096, 4096}, 3.5},
    PeerCase{"shm-16k-nixl", "nixl_peer.py", {16384, 4096}, 2},
    PeerCase{"shm-4k-mooncake", "mooncake_peer.py", {4096, 4096}, 35},
};
Status run_case(SuiteContext& context, const PeerCase& item) {
  const Result<double> theirs_us =
      peer_us(context, {.program = item.script, .setting = {}, .shape = item.shape});
  if (!theirs_us.ok()) {
    SuiteContext::leave_out(item.name, theirs_us.status().message());
    return Status();
  }
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_ASSIGN(Session* const session, rig->session(MemoryKind::kPrivate));
  SL_ASSIGN(CopyLimit* const limit, context.limit());
  SL_ASSIGN(const Measurement measured,
            measure(item.shape, {Rig::contender(*session, Op::kRead), limit->streaming()},
                    context.measure_options()));
  SuiteContext::warn_if_disturbed(item.name, measured);
  SL_TRY(rig->verify(Op::kRead, MemoryKind::kPrivate, item.shape));
  context.add({.name = item.name,
               .value = *theirs_us / measured.median_us(0),
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = item.target,
               .limit = *theirs_us / measured.median_us(1)});
  return Status();
}

}  // namespace

Status run_peer_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_TRY(rig->prepare(Op::kRead, MemoryKind::kPrivate));
  for (const PeerCase& item : kPeerCases) SL_TRY(run_case(context, item));
  return Status();
}

}  // namespace stagelink::cli::bench
