#include <array>
#include <span>

#include "cli/bench/network/network_groups.h"
#include "cli/bench/network/private_rig.h"
#include "cli/bench/suite/peer_run.h"

namespace stagelink::cli::bench {

namespace {

struct PeerCase {
  const char* name;
  const char* program;
  const char* setting;
  double target;
};

constexpr Shape kPeerShape{.block_bytes = 4096, .blocks = 4096};

constexpr std::array kPrivateCases = {
    PeerCase{"private-4k-ucx122", "ucx_peer", "UCX_TLS=posix,cma", 1.8},
    PeerCase{"private-4k-ucx113", "ucx113_peer", "UCX_TLS=posix,cma", 1},
    PeerCase{"private-4k-nixl", "nixl_peer.py", "", 2},
};
constexpr std::array kTcpCases = {
    PeerCase{"tcp-4k-nixl", "nixl_peer.py", "UCX_TLS=tcp", 5},
    PeerCase{"tcp-4k-mooncake", "mooncake_peer.py", "", 20},
    PeerCase{"tcp-4k-ucx", "ucx_peer", "UCX_TLS=tcp", 5},
};

// The peer and the engine run right after each other; peers bring two processes of their own.
Status run_case(SuiteContext& context, Rig& rig, const PeerCase& item) {
  const Result<double> theirs_us =
      peer_us(context, {.program = item.program, .setting = item.setting, .shape = kPeerShape});
  if (!theirs_us.ok()) {
    SuiteContext::leave_out(item.name, theirs_us.status().message());
    return Status();
  }
  SL_ASSIGN(Session* const session, rig.session(MemoryKind::kPrivate));
  SL_ASSIGN(const Measurement measured, measure(kPeerShape, {Rig::contender(*session, Op::kRead)},
                                                measure_options(context, rig)));
  SuiteContext::warn_if_disturbed(item.name, measured);
  SL_TRY(rig.verify(Op::kRead, MemoryKind::kPrivate, kPeerShape));
  context.add({.name = item.name,
               .value = *theirs_us / measured.median_us(0),
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = item.target});
  return Status();
}

Status run_cases(SuiteContext& context, const char* transport, std::span<const PeerCase> cases) {
  const Result<std::unique_ptr<Rig>> rig = make_private_rig(context, transport);
  for (const PeerCase& item : cases) {
    if (rig.ok()) {
      SL_TRY(run_case(context, **rig, item));
    } else {
      SuiteContext::leave_out(item.name, rig.status().message());
    }
  }
  return Status();
}

}  // namespace

Status run_private_peer_group(SuiteContext& context) {
  return run_cases(context, "auto", kPrivateCases);
}

Status run_tcp_peer_group(SuiteContext& context) { return run_cases(context, "tcp", kTcpCases); }

}  // namespace stagelink::cli::bench
