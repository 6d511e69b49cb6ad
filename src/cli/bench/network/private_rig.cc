#include "cli/bench/network/private_rig.h"

#include <string>

namespace stagelink::cli::bench {

Result<std::unique_ptr<Rig>> make_private_rig(SuiteContext& context, std::string_view transport) {
  context.drop_rig();
  RigOptions options;
  if (transport != "auto") options.transports = {std::string(transport)};
  options.remote = MemoryKind::kPrivate;
  options.pin = context.options().pin;
  options.huge_pages = context.options().huge_pages;
  SL_ASSIGN(std::unique_ptr<Rig> rig, Rig::create(options));
  SL_TRY(rig->prepare(Op::kRead, MemoryKind::kPrivate));
  SL_TRY(rig->session(MemoryKind::kPrivate).status());
  return rig;
}

MeasureOptions measure_options(const SuiteContext& context, Rig& rig) {
  MeasureOptions options;
  options.repetitions = context.options().repetitions;
  options.target = rig.target().pid();
  return options;
}

}  // namespace stagelink::cli::bench
