#include "integration/support/gauges.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "base/runtime_dir.h"
#include "integration/support/eventually.h"
#include "integration/support/sanitized.h"

namespace stagelink::test {
namespace {

namespace fs = std::filesystem;

constexpr Duration kSettle = std::chrono::seconds(5);

std::vector<std::string> list_fds() {
  std::vector<std::string> fds;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", error)) {
    const fs::path target = fs::read_symlink(entry, error);
    // That of this listing, and what a sanitizer opens to look at a stack.
    if (error || target.string().rfind("/proc/", 0) == 0) continue;
    // The symbolizer's, which the thread sanitizer starts with the first report that it suppresses.
    if (kThreadSanitized && target.string().rfind("pipe:", 0) == 0) continue;
    fds.push_back(entry.path().filename().string() + " -> " + target.string());
  }
  return fds;
}

void add_entries(const std::string& dir, std::string_view prefix, std::set<std::string>& out) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(prefix, 0) == 0) out.insert(dir + "/" + name);
  }
}

}  // namespace

size_t open_fds() { return list_fds().size(); }

size_t running_threads() {
  std::error_code error;
  size_t count = 0;
  for (auto at = fs::directory_iterator("/proc/self/task", error); at != fs::directory_iterator();
       at.increment(error)) {
    ++count;
  }
  return count;
}

Gauges::Gauges(std::string runtime_dir) noexcept
    : runtime_dir_(std::move(runtime_dir)), before_(read()) {}

Gauges::Reading Gauges::read() const {
  Reading now;
  now.fds = list_fds();
  now.threads = running_threads();
  add_entries(runtime_dir_, "", now.entries);
  for (const std::string& dir : runtime_dir_candidates("")) {
    add_entries(dir, std::to_string(::getpid()) + "-", now.entries);
  }
  return now;
}

std::string Gauges::compare(const Reading& now) const {
  std::string found;
  if (now.fds.size() != before_.fds.size()) {
    found += "open fds: " + std::to_string(before_.fds.size()) + " before, now";
    for (const std::string& fd : now.fds) found += " [" + fd + "]";
    found += "\n";
  }
  if (now.threads != before_.threads) {
    found += "threads: " + std::to_string(before_.threads) + " before, now " +
             std::to_string(now.threads) + "\n";
  }
  for (const std::string& entry : now.entries) {
    if (!before_.entries.contains(entry)) found += "left behind: " + entry + "\n";
  }
  return found;
}

std::string Gauges::difference() const {
  std::string found;
  eventually([&] { return (found = compare(read())).empty(); }, kSettle);
  return found;
}

double metric_in(std::string_view text, std::string_view name, std::string_view reason) {
  std::istringstream lines{std::string(text)};
  std::string line;
  const std::string start = "stagelink_" + std::string(name) + "{";
  const std::string label = "reason=\"" + std::string(reason) + "\"";
  while (std::getline(lines, line)) {
    if (line.rfind(start, 0) != 0) continue;
    if (!reason.empty() && line.find(label) == std::string::npos) continue;
    return std::strtod(line.c_str() + line.rfind(' '), nullptr);
  }
  return -1;
}

double metric(const Engine& engine, std::string_view name, std::string_view reason) {
  return metric_in(engine.metrics_text(), name, reason);
}

}  // namespace stagelink::test
