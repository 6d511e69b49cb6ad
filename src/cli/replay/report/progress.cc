#include "cli/replay/report/progress.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace stagelink::cli::replay {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr size_t kBarWidth = 30;
constexpr size_t kDefaultColumns = 80;

size_t terminal_columns() {
  winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefaultColumns;
  return size.ws_col;
}

}  // namespace

Progress::Progress(bool wanted) : active_(wanted && ::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { clear(); }

void Progress::show(uint64_t done, uint64_t total, const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (!active_ || now < next_) return;
  next_ = now + kInterval;
  drawn_ = true;
  const std::string line = progress_line(done, total, text, terminal_columns() - 1);
  std::fprintf(stderr, "\r%s\033[K", line.c_str());
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

std::string progress_line(uint64_t done, uint64_t total, const std::string& text, size_t columns) {
  const size_t filled = total == 0 ? 0 : std::min<size_t>(kBarWidth, kBarWidth * done / total);
  std::string line = fmt::format("[{}{}] {}/{}  {}", std::string(filled, '#'),
                                 std::string(kBarWidth - filled, '.'), done, total, text);
  if (line.size() > columns) line.resize(columns);
  return line;
}

}  // namespace stagelink::cli::replay
