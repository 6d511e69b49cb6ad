#include <nlohmann/json.hpp>

#include "cli/bench/store/store_groups.h"
#include "cli/bench/store/store_script.h"

namespace stagelink::cli::bench {

Status run_store_pending_group(SuiteContext& context) {
  const auto printed = numbers_of(context, "pending", "store_pending.py", store_python(context));
  if (!printed.is_object() || !printed.contains("pending_ms")) return Status();
  context.add({.name = "pending",
               .value = printed["pending_ms"].get<double>(),
               .unit = "ms",
               .goal = Goal::kAtMost,
               .target = 10});
  return Status();
}

}  // namespace stagelink::cli::bench
