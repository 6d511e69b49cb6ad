#include <array>
#include <string>
#include <vector>

#include "cli/bench/limit/socket_limit.h"
#include "cli/bench/network/network_groups.h"
#include "cli/bench/network/private_rig.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

namespace {

struct TcpCase {
  const char* name;
  Shape shape;
  double scattered_target;  // 0: no row.
  double plain_target;
};

constexpr std::array kTcpGroupCases = {
    TcpCase{"tcp-4k", {4096, 4096}, 0.95, 0.6},
    TcpCase{"tcp-64k", {65536, 1024}, 0.95, 0.8},
    TcpCase{"tcp-64m", {uint64_t{64} << 20, 4}, 0, 0.9},
};
constexpr double kSmallTarget = 1.5;
constexpr uint32_t kSmallReads = 4000;
constexpr uint32_t kSmallWarmUps = 200;

Status run_case(SuiteContext& context, Rig& rig, SocketLimit& limit, const TcpCase& item) {
  SL_ASSIGN(Session* const session, rig.session(MemoryKind::kPrivate));
  std::vector<Contender> contenders = {Rig::contender(*session, Op::kRead), limit.plain()};
  if (item.scattered_target > 0) contenders.push_back(limit.scattered());
  SL_ASSIGN(const Measurement measured,
            measure(item.shape, contenders, measure_options(context, rig)));
  SuiteContext::warn_if_disturbed(item.name, measured);
  SL_TRY(rig.verify(Op::kRead, MemoryKind::kPrivate, item.shape));
  const double ours_us = measured.median_us(0);
  if (item.scattered_target > 0) {
    context.add({.name = item.name,
                 .value = measured.median_us(2) / ours_us,
                 .unit = "x",
                 .goal = Goal::kAtLeast,
                 .target = item.scattered_target});
  }
  context.add({.name = std::string(item.name) + "-plain",
               .value = measured.median_us(1) / ours_us,
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = item.plain_target});
  return Status();
}

Status read_8_bytes(Session& session, const Picks& picks, size_t at) {
  const RangeList one{.local_offsets = std::span(&picks.local[at], 1),
                      .remote_offsets = std::span(&picks.remote[at], 1),
                      .sizes = std::span(&picks.sizes[at], 1),
                      .local_regions = {},
                      .remote_regions = {}};
  SL_ASSIGN(Transfer transfer, session.read(one));
  return transfer.wait();
}

// A read of 8 bytes and a ping-pong of the socket take turns, so that both find the processors in
// the same state.
Status run_small(SuiteContext& context, Rig& rig, const SocketLimit& limit) {
  SL_ASSIGN(Session* const session, rig.session(MemoryKind::kPrivate));
  const Picks picks = make_picks({.block_bytes = 8, .blocks = 4096}, 1);
  SL_TRY(limit.begin_ping_pong(kSmallReads + kSmallWarmUps));
  std::vector<double> ours_us;
  std::vector<double> theirs_us;
  for (uint32_t i = 0; i < kSmallReads + kSmallWarmUps; ++i) {
    const double start_us = now_us();
    SL_TRY(read_8_bytes(*session, picks, i % picks.sizes.size()));
    const double read_us = now_us();
    SL_TRY(limit.ping_pong());
    if (i < kSmallWarmUps) continue;
    ours_us.push_back(read_us - start_us);
    theirs_us.push_back(now_us() - read_us);
  }
  SL_TRY(rig.verify(Op::kRead, MemoryKind::kPrivate, {.block_bytes = 8, .blocks = 4096}));
  context.add({.name = "tcp-8b",
               .value = percentile(ours_us, 0.5) / percentile(theirs_us, 0.5),
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = kSmallTarget});
  return Status();
}

}  // namespace

Status run_tcp_group(SuiteContext& context) {
  const Result<std::unique_ptr<Rig>> rig = make_private_rig(context, "tcp");
  if (!rig.ok()) {
    SuiteContext::leave_out("tcp-4k tcp-64k tcp-64m-plain tcp-8b", rig.status().message());
    return Status();
  }
  SL_ASSIGN(const std::unique_ptr<SocketLimit> limit,
            SocketLimit::create((*rig)->target(), (*rig)->remote_number(),
                                (*rig)->local(MemoryKind::kPrivate).bytes()));
  for (const TcpCase& item : kTcpGroupCases) SL_TRY(run_case(context, **rig, *limit, item));
  return run_small(context, **rig, *limit);
}

}  // namespace stagelink::cli::bench
