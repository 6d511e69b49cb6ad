#include <memory>
#include <string>
#include <vector>

#include "cli/bench/network/network_groups.h"
#include "cli/bench/network/private_rig.h"
#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kBlocks = 15000;
constexpr uint64_t kBytes = kBlockBytes * kBlocks;
constexpr Shape kScattered{.block_bytes = kBlockBytes, .blocks = kBlocks};
constexpr double kRegularTarget = 1.3;
constexpr double kScatteredTarget = 4;
constexpr double kSubmitTargetMs = 20;

// The same bytes in four shapes. Each batch begins elsewhere in the region.
enum class Form : uint8_t { kOnePiece, kAdjacent, kStrided };

// Where the batch of a repetition begins; room for twice its bytes is left behind.
uint64_t start_of(const Picks& picks) noexcept {
  return picks.remote[0] % (kRegionBytes - 2 * kBytes) / kBlockBytes * kBlockBytes;
}

Result<Transfer> submit(Session& session, Form form, uint64_t start, Picks& ranges) {
  if (form == Form::kStrided) {
    const StridedRange strided{.local_offset = start,
                               .remote_offset = start,
                               .bytes = kBlockBytes,
                               .count = kBlocks,
                               .local_stride = 2 * kBlockBytes,
                               .remote_stride = 2 * kBlockBytes};
    return session.read(strided);
  }
  for (size_t i = 0; i < ranges.sizes.size(); ++i) {
    ranges.local[i] = ranges.remote[i] = start + i * kBlockBytes;
  }
  return session.read(ranges.ranges());
}

Contender contender(Session& session, Form form) {
  const size_t count = form == Form::kAdjacent ? kBlocks : 1;
  const auto ranges = std::make_shared<Picks>();
  ranges->local.resize(count);
  ranges->remote.resize(count);
  ranges->sizes.assign(count, kBytes / count);
  return [&session, form, ranges](const Picks& picks, Sample& sample) -> Status {
    const double start_us = now_us();
    SL_ASSIGN(Transfer transfer, submit(session, form, start_of(picks), *ranges));
    sample.submit_us = now_us() - start_us;
    SL_TRY(transfer.wait());
    sample.wall_us = now_us() - start_us;
    return Status();
  };
}

Status run_over(SuiteContext& context, const std::string& prefix, Rig& rig) {
  SL_ASSIGN(Session* const session, rig.session(MemoryKind::kPrivate));
  const std::vector<Contender> contenders = {
      contender(*session, Form::kOnePiece), contender(*session, Form::kAdjacent),
      contender(*session, Form::kStrided), Rig::contender(*session, Op::kRead)};
  SL_ASSIGN(const Measurement measured,
            measure(kScattered, contenders, measure_options(context, rig)));
  SuiteContext::warn_if_disturbed(prefix, measured);
  SL_TRY(rig.verify(Op::kRead, MemoryKind::kPrivate, kScattered));
  const double one_us = measured.median_us(0);
  const auto add = [&](const char* name, double value, const char* unit, double target) {
    context.add({.name = prefix + name,
                 .value = value,
                 .unit = unit,
                 .goal = Goal::kAtMost,
                 .target = target});
  };
  add("-adjacent", measured.median_us(1) / one_us, "x", kRegularTarget);
  add("-strided", measured.median_us(2) / one_us, "x", kRegularTarget);
  add("-scattered", measured.median_us(3) / one_us, "x", kScatteredTarget);
  add("-submit", measured.p(3, &Sample::submit_us, 0.5) * 1e-3, "ms", kSubmitTargetMs);
  return Status();
}

}  // namespace

Status run_shape_group(SuiteContext& context) {
  {
    SL_ASSIGN(Rig* const rig, context.rig());
    SL_TRY(rig->prepare(Op::kRead, MemoryKind::kPrivate));
    SL_TRY(run_over(context, "shape-shm", *rig));
  }
  const Result<std::unique_ptr<Rig>> rig = make_private_rig(context, "tcp");
  if (rig.ok()) return run_over(context, "shape-tcp", **rig);
  SuiteContext::leave_out("shape-tcp", rig.status().message());
  return Status();
}

}  // namespace stagelink::cli::bench
