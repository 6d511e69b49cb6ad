#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "base/runtime_dir.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/stat/live_engines.h"
#include "cli/stat/stat_report.h"

namespace stagelink::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct StatArguments {
  std::string target = "all";
  std::string runtime_dir;
  std::string interval = "1s";
  uint64_t count = 0;
  bool watch = false;
  bool json = false;
  bool prometheus = false;
};

constexpr const char* kStatExamples =
    "Examples:\n"
    "  stagelink stat                    all engines of this user on this host\n"
    "  stagelink stat 4711 --watch       one process, with rates, every second\n"
    "  stagelink stat --json | jq '.[].metrics[] | select(.name==\"stagelink_read_bytes_total\")'\n"
    "  stagelink stat --prometheus       what a scrape would get\n"
    "Exit codes: 0 done, 1 no engine in that process or unreadable counters, 2 wrong usage.\n";

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void complain(const std::string& text) { std::fprintf(stderr, "error: %s\n", text.c_str()); }

std::vector<std::string> directories(const StatArguments& arguments) {
  std::string configured = arguments.runtime_dir;
  if (configured.empty()) {
    const char* variable = std::getenv("STAGELINK_RUNTIME_DIR");
    if (variable != nullptr) configured = variable;
  }
  return runtime_dir_candidates(configured);
}

// Shows what is there, again and again if asked to.
class StatView {
 public:
  StatView(const StatArguments& arguments, std::optional<pid_t> pid, Duration interval)
      : arguments_(arguments), pid_(pid), interval_(interval), dirs_(directories(arguments)) {}

  int run() {
    const uint64_t rounds = arguments_.watch ? arguments_.count : 1;
    for (uint64_t round = 1;; ++round) {
      LiveEngines found = find_engines(dirs_, pid_);
      if (const std::optional<int> code = end(found, round)) return *code;
      show(found.engines, round);
      if (round == rounds) return found.problems.empty() ? kExitOk : kExitFailed;
      remember(std::move(found.engines));
      std::this_thread::sleep_for(interval_);
    }
  }

 private:
  // The exit code if there is nothing to show.
  std::optional<int> end(const LiveEngines& found, uint64_t round) const {
    for (const std::string& problem : found.problems) complain(problem);
    if (!found.engines.empty()) return std::nullopt;
    if (pid_.has_value() && round > 1 && found.problems.empty()) {
      print(fmt::format("the engine of process {} has ended\n", *pid_));
      return kExitOk;
    }
    if (pid_.has_value()) {
      complain(fmt::format("no engine of this user runs in process {} (looked in {})", *pid_,
                           fmt::join(dirs_, ", ")));
      return kExitFailed;
    }
    if (!found.problems.empty()) return kExitFailed;
    return std::nullopt;
  }

  void show(const std::vector<metrics::StatSnapshot>& engines, uint64_t round) const {
    if (arguments_.json) return print(stat_json(engines));
    std::string out;
    if (arguments_.watch && ::isatty(STDOUT_FILENO) == 1) out += "\x1b[H\x1b[J";  // A clean screen.
    if (engines.empty()) out += "no engine of this user runs on this host\n";
    for (const metrics::StatSnapshot& engine : engines) {
      if (arguments_.prometheus) {
        out += to_prometheus(engine);
        continue;
      }
      const auto before = earlier_.find(engine.instance.to_string());
      std::optional<EarlierLook> look;
      if (round > 1 && before != earlier_.end()) {
        look.emplace(EarlierLook{before->second, Clock::now() - earlier_at_});
      }
      out += stat_table(engine, look);
    }
    print(out);
  }

  void remember(std::vector<metrics::StatSnapshot> engines) {
    earlier_.clear();
    earlier_at_ = Clock::now();
    for (metrics::StatSnapshot& engine : engines) {
      std::string key = engine.instance.to_string();
      earlier_.emplace(std::move(key), std::move(engine));
    }
  }

  const StatArguments& arguments_;
  const std::optional<pid_t> pid_;
  const Duration interval_;
  const std::vector<std::string> dirs_;
  std::map<std::string, metrics::StatSnapshot> earlier_;  // By instance.
  Clock::time_point earlier_at_;
};

int run_stat(const StatArguments& arguments) {
  std::optional<pid_t> pid;
  if (arguments.target != "all") {
    const auto number = parse_integer(arguments.target);
    if (!number.ok() || *number <= 0 || *number > INT32_MAX) {
      complain(fmt::format("`{}` is neither a process id nor `all`", arguments.target));
      return kExitUsage;
    }
    pid = static_cast<pid_t>(*number);
  }
  auto interval = parse_duration(arguments.interval);
  if (!interval.ok() || *interval < std::chrono::milliseconds(10)) {
    complain(interval.ok() ? "--interval: at least 10ms"
                           : "--interval: " + std::string(interval.status().message()));
    return kExitUsage;
  }
  return StatView(arguments, pid, *interval).run();
}

}  // namespace

void add_stat_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("stat", "Show the counters of running engines");
  const auto arguments = std::make_shared<StatArguments>();
  command->add_option("target", arguments->target, "A process id, or `all` (the default)");
  command->add_flag("--watch", arguments->watch, "Show again every interval, with rates");
  command->add_option("--interval", arguments->interval, "Time between two looks (default 1s)");
  command->add_option("--count", arguments->count, "End after so many looks; 0: never");
  auto* json = command->add_flag("--json", arguments->json, "One JSON array a look, on one line");
  command->add_flag("--prometheus", arguments->prometheus, "Prometheus text")->excludes(json);
  command->add_option("--runtime-dir", arguments->runtime_dir,
                      "Where to look; default: STAGELINK_RUNTIME_DIR or the usual places");
  command->footer(kStatExamples);
  command->callback([arguments, &exit_code] { exit_code = run_stat(*arguments); });
}

}  // namespace stagelink::cli
