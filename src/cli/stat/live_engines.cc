#include "cli/stat/live_engines.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "base/process_id.h"
#include "base/runtime_dir.h"

namespace stagelink::cli {
namespace {

namespace fs = std::filesystem;

void read_dir(const std::string& dir, std::optional<pid_t> pid, LiveEngines& out) {
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(dir, error)) {
    const auto entry = parse_runtime_entry(file.path().filename().string());
    if (!entry.has_value() || entry->kind != "stat") continue;
    if (pid.has_value() && entry->pid != *pid) continue;
    auto snapshot = metrics::read_stat_file(file.path().string());
    if (snapshot.ok()) {
      if (liveness_of(snapshot->process) != Liveness::kDead) {
        out.engines.push_back(*std::move(snapshot));
      }
    } else if (snapshot.status().code() != Code::kNotFound) {  // It may have just closed.
      out.problems.push_back(snapshot.status().to_string());
    }
  }
}

}  // namespace

LiveEngines find_engines(const std::vector<std::string>& dirs, std::optional<pid_t> pid) {
  LiveEngines out;
  for (const std::string& dir : dirs) read_dir(dir, pid, out);
  std::sort(out.engines.begin(), out.engines.end(),
            [](const metrics::StatSnapshot& a, const metrics::StatSnapshot& b) {
              return std::tie(a.process.pid, a.instance.high, a.instance.low) <
                     std::tie(b.process.pid, b.instance.high, b.instance.low);
            });
  return out;
}

}  // namespace stagelink::cli
