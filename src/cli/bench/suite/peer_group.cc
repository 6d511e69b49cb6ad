#include <array>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/suite/child_output.h"
#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

struct PeerCase {
  const char* name;
  const char* script;
  Shape shape;
  double target;
};

constexpr std::array kCases = {
    PeerCase{"shm-256-nixl", "peers/nixl_peer.py", {256, 4096}, 30},
    PeerCase{"shm-4k-nixl", "peers/nixl_peer.py", {4096, 4096}, 3.5},
    PeerCase{"shm-16k-nixl", "peers/nixl_peer.py", {16384, 4096}, 2},
    PeerCase{"shm-4k-mooncake", "peers/mooncake_peer.py", {4096, 4096}, 35},
};
constexpr auto kTimeout = std::chrono::seconds(90);

// The peer's median on the same work. Errors: not_found, naming what is missing.
Result<double> peer_us(const SuiteContext& context, const PeerCase& item) {
  const std::optional<std::string> script = context.script(item.script);
  if (!script) {
    return Status(Reason::kNotFound, fmt::format("bench/{} not found", item.script));
  }
  const std::string& chosen = context.options().peers_python;
  const std::string python =
      chosen.empty() ? context.beside_sources("build/peers-venv/bin/python", "") : chosen;
  if (python.empty()) {
    return Status(Reason::kNotFound,
                  "there is no build/peers-venv; make -f bench/bench.mk peers makes it");
  }
  SL_ASSIGN(const std::string output,
            run_child({python, *script, "--block", std::to_string(item.shape.block_bytes),
                       "--blocks", std::to_string(item.shape.blocks), "--repetitions",
                       std::to_string(context.options().repetitions), "--json"},
                      kTimeout));
  const auto json = nlohmann::json::parse(output, nullptr, false);
  if (!json.is_object() || !json.contains("p50_us") || !json.value("verified", false)) {
    return Status(Reason::kCorrupt, "the peer moved wrong bytes or printed no p50_us");
  }
  return json["p50_us"].get<double>();
}

Status run_case(SuiteContext& context, const PeerCase& item) {
  const Result<double> theirs_us = peer_us(context, item);
  if (!theirs_us.ok()) {
    SuiteContext::leave_out(item.name, theirs_us.status().message());
    return Status();
  }
  SL_ASSIGN(Rig* const rig, context.rig());
  SL_ASSIGN(Session* const session, rig->session(LocalMemory::kPrivate));
  SL_ASSIGN(CopyLimit* const limit, context.limit());
  SL_ASSIGN(const Measurement measured,
            measure(item.shape, {Rig::contender(*session, Op::kRead), limit->streaming()},
                    context.measure_options()));
  SuiteContext::warn_if_disturbed(item.name, measured);
  SL_TRY(rig->verify(Op::kRead, LocalMemory::kPrivate, item.shape));
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
  SL_TRY(rig->prepare(Op::kRead, LocalMemory::kPrivate));
  for (const PeerCase& item : kCases) SL_TRY(run_case(context, item));
  return Status();
}

}  // namespace stagelink::cli::bench
