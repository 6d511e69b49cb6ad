#include <array>
#include <string>

#include "cli/bench/limit/vector_limit.h"
#include "cli/bench/moriio/moriio_groups.h"
#include "cli/bench/moriio/notice_log.h"
#include "cli/bench/moriio/producer.h"
#include "cli/bench/network/private_rig.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/suite/peer_run.h"

namespace stagelink::cli::bench {

namespace {

constexpr uint32_t kLayers = 32;
// 64 blocks of each layer.
constexpr Shape kWriteShape{.block_bytes = 32 << 10, .blocks = kLayers * 64};

constexpr double kCopyTarget = 0.8;
constexpr double kPrivateTarget = 0.9;

struct PeerCase {
  const char* name;
  const char* setting;
  double target;
};
constexpr std::array kPeers = {
    PeerCase{"write-nixl", "", 1.4},
    PeerCase{"write-nixl-default", "NIXL_PROGRESS_THREAD=1", 2.5},
};

// From all layers saved to the decode rank's callback.
class Connector {
 public:
  Connector(Rig& rig, Session& session, Endpoint notify) : rig_(rig) {
    // The rig outlives the producer.
    producer_.add({std::shared_ptr<Session>(std::shared_ptr<void>(), &session), std::move(notify)});
  }

  Contender write() {
    return [this](const Picks& picks, Sample& sample) -> Status {
      const Write write{.transfer_id = clocked_id(++transfers_, now_us()),
                        .picks = &picks,
                        .layers = kLayers,
                        .consumer = 0};
      producer_.allocate(write);
      SL_TRY(rig_.target().begin_arrivals(1));
      const double saved_us = now_us();
      SL_TRY(producer_.save(write));
      SL_ASSIGN(const Arrivals arrivals, rig_.target().end_arrivals());
      sample.wall_us = arrivals.last_us - saved_us;
      return producer_.abort(write);  // Waits for its end on this side.
    };
  }

 private:
  Rig& rig_;
  Producer producer_;
  uint64_t transfers_ = 0;
};

// The median of the connector, and beside it that of what it is held against.
Result<Measurement> measure_writes(Rig& rig, MemoryKind memory, const Contender& limit,
                                   const MeasureOptions& options) {
  SL_TRY(rig.prepare(Op::kWrite, memory));
  SL_ASSIGN(Session* const session, rig.session(memory));
  SL_ASSIGN(Endpoint notify, rig.target().listen());
  Connector connector(rig, *session, std::move(notify));
  const Contender ours = connector.write();
  SL_ASSIGN(Measurement measured, measure(kWriteShape, {ours, limit}, options));
  SL_TRY(rig.verify(Op::kWrite, memory, kWriteShape, ours));
  return measured;
}

void add_peer(SuiteContext& context, const PeerCase& item, double ours_us) {
  const Result<double> theirs_us =
      peer_us(context, {.program = "nixl_peer.py", .setting = item.setting, .shape = kWriteShape});
  if (!theirs_us.ok()) return SuiteContext::leave_out(item.name, theirs_us.status().message());
  context.add({.name = item.name,
               .value = *theirs_us / ours_us,
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = item.target});
}

}  // namespace

Status run_write_group(SuiteContext& context) {
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_ASSIGN(CopyLimit* const limit, context.limit());
  SL_ASSIGN(const Measurement measured, measure_writes(*rig, MemoryKind::kShareable, limit->plain(),
                                                       context.measure_options()));
  SuiteContext::warn_if_disturbed("write", measured);
  const double ours_us = measured.median_us(0);
  context.add({.name = "write",
               .value = measured.median_us(1) / ours_us,
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = kCopyTarget});
  for (const PeerCase& item : kPeers) add_peer(context, item, ours_us);
  return Status();
}

Status run_write_private_group(SuiteContext& context) {
  const Result<std::unique_ptr<Rig>> made = make_private_rig(context, "auto");
  if (!made.ok()) {
    SuiteContext::leave_out("write-private", made.status().message());
    return Status();
  }
  Rig& rig = **made;
  VectorLimit limit(rig.target().pid(), rig.remote().address,
                    rig.local(MemoryKind::kPrivate).bytes());
  SL_ASSIGN(const Measurement measured, measure_writes(rig, MemoryKind::kPrivate, limit.write(),
                                                       measure_options(context, rig)));
  SuiteContext::warn_if_disturbed("write-private", measured);
  context.add({.name = "write-private",
               .value = measured.median_us(1) / measured.median_us(0),
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = kPrivateTarget});
  return Status();
}

}  // namespace stagelink::cli::bench
