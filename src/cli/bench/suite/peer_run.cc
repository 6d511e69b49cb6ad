#include "cli/bench/suite/peer_run.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/suite/child_output.h"

namespace stagelink::cli::bench {

namespace {

constexpr auto kTimeout = std::chrono::seconds(90);
constexpr const char* kHowToInstall = "make -f bench/bench.mk peers makes it";

// The words that start it.
Result<std::vector<std::string>> command_of(const SuiteContext& context, const PeerRun& run) {
  if (!run.program.ends_with(".py")) {
    std::string program =
        context.beside_sources(fmt::format("build/peers-venv/{}", run.program), "");
    if (!program.empty()) return std::vector<std::string>{std::move(program)};
    return Status(Reason::kNotFound,
                  fmt::format("there is no build/peers-venv/{}; {}", run.program, kHowToInstall));
  }
  const auto script = context.script(fmt::format("peers/{}", run.program));
  if (!script)
    return Status(Reason::kNotFound, fmt::format("bench/peers/{} not found", run.program));
  const std::string& chosen = context.options().peers_python;
  const std::string python =
      chosen.empty() ? context.beside_sources("build/peers-venv/bin/python", "") : chosen;
  if (python.empty()) {
    return Status(Reason::kNotFound,
                  fmt::format("there is no build/peers-venv; {}", kHowToInstall));
  }
  return std::vector<std::string>{python, *script};
}

}  // namespace

Result<double> peer_us(const SuiteContext& context, const PeerRun& run) {
  std::vector<std::string> words;
  if (!run.setting.empty()) words = {"env", std::string(run.setting)};
  SL_ASSIGN(const std::vector<std::string> command, command_of(context, run));
  words.insert(words.end(), command.begin(), command.end());
  for (const std::string& word :
       {std::string("--block"), std::to_string(run.shape.block_bytes), std::string("--blocks"),
        std::to_string(run.shape.blocks), std::string("--repetitions"),
        std::to_string(context.options().repetitions), std::string("--json")}) {
    words.push_back(word);
  }
  SL_ASSIGN(const std::string output, run_child(words, kTimeout));
  const auto json = nlohmann::json::parse(output, nullptr, false);
  if (!json.is_object() || !json.contains("p50_us") || !json["p50_us"].is_number() ||
      !json.value("verified", false)) {
    return Status(Reason::kCorrupt, "the peer moved wrong bytes or printed no p50_us");
  }
  return json["p50_us"].get<double>();
}

}  // namespace stagelink::cli::bench
