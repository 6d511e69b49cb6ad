#include <fmt/format.h>

#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

constexpr double kSubmitTargetUs = 300;
constexpr double kCancelTargetMs = 1;
// The whole region, in pieces large enough that the batch runs for tens of milliseconds.
constexpr Shape kGigabyte{.block_bytes = 256 << 10, .blocks = 4096};

Status measure_submit(SuiteContext& context, Session& session) {
  SL_ASSIGN(const Measurement measured,
            measure({.block_bytes = 4096, .blocks = 4096}, {Rig::contender(session, Op::kRead)},
                    context.measure_options()));
  SuiteContext::warn_if_disturbed("submit", measured);
  context.add({.name = "submit",
               .value = measured.p(0, &Sample::submit_us, 0.5),
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kSubmitTargetUs});
  return Status();
}

// Cancels while the batch is being copied. Errors: invalid_state if it had ended before.
Result<double> cancel_once_us(Session& session, const Picks& picks) {
  SL_ASSIGN(Transfer transfer, session.read(picks.ranges()));
  (void)transfer.poll(std::chrono::milliseconds(2));
  const double start_us = now_us();
  const TransferPhase phase = transfer.cancel();
  const double took_us = now_us() - start_us;
  if (phase == TransferPhase::kFailed) return took_us;
  return Status(Reason::kInvalidState, "the batch ended before it could be cancelled");
}

}  // namespace

Status run_submit_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_ASSIGN(Session* const session, rig->session(MemoryKind::kPrivate));
  SL_TRY(measure_submit(context, *session));

  std::vector<double> took_us;
  for (uint32_t i = 0; i < context.options().repetitions; ++i) {
    SL_ASSIGN(const double us, cancel_once_us(*session, make_picks(kGigabyte, i)));
    took_us.push_back(us);
  }
  context.add({.name = "submit-cancel",
               .value = percentile(took_us, 0.5) * 1e-3,
               .unit = "ms",
               .goal = Goal::kAtMost,
               .target = kCancelTargetMs});
  return Status();
}

}  // namespace stagelink::cli::bench
