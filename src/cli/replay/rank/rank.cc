#include "cli/replay/rank/rank.h"

namespace stagelink::cli::replay {

void RankContext::report_error(Reason cause, uint64_t count) const {
  report({{"event", "error"}, {"cause", reason_name(cause)}, {"count", count}});
}

void RankContext::report_transfer(uint32_t request, uint64_t bytes,
                                  std::chrono::steady_clock::time_point start,
                                  Duration spent) const {
  report({{"event", "transfer"},
          {"request", request},
          {"bytes", bytes},
          {"start_ns", Duration(start.time_since_epoch()).count()},
          {"ns", spent.count()}});
}

}  // namespace stagelink::cli::replay
