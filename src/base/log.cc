#include "base/log.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "base/text.h"

namespace stagelink {
namespace {

// No lock anywhere: a forked child may find any of this in the middle of an update, and must still
// be able to log.

constexpr uint32_t kLinesPerWindow = 20;
constexpr int64_t kWindowSeconds = 10;

// The lines of one `what`. Two that share a slot share its budget.
struct RateSlot {
  std::atomic<int64_t> window_start{0};
  std::atomic<uint32_t> lines{0};
};
std::array<RateSlot, 256> g_slots;

constexpr int kLevelUnset = -1;
std::atomic<int> g_level{kLevelUnset};

constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warning", "error",
                                                         "off"};

int level_from_environment() noexcept {
  const char* text = std::getenv("STAGELINK_LOG_LEVEL");
  if (text != nullptr) {
    for (size_t i = 0; i < kLevelNames.size(); ++i) {
      if (kLevelNames[i] == text) return static_cast<int>(i);
    }
  }
  return static_cast<int>(LogLevel::kWarning);
}

int current_level() noexcept {
  int level = g_level.load(std::memory_order_relaxed);  // Guards nothing else.
  if (level == kLevelUnset) {
    const int fresh = level_from_environment();
    level = g_level.compare_exchange_strong(level, fresh) ? fresh : level;
  }
  return level;
}

RateSlot& slot_for(std::string_view what) noexcept {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : what) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return g_slots[(hash ^ (hash >> 32)) % g_slots.size()];
}

// Whether the line may be written; `held_back` is set to the lines of the window that has just
// ended which were not.
bool admit(RateSlot& slot, int64_t now, uint32_t& held_back) noexcept {
  int64_t start = slot.window_start.load();
  if (now - start >= kWindowSeconds && slot.window_start.compare_exchange_strong(start, now)) {
    const uint32_t lines = slot.lines.exchange(0);
    if (lines > kLinesPerWindow) held_back = lines - kLinesPerWindow;
  }
  return slot.lines.fetch_add(1) < kLinesPerWindow;
}

// Whether there is a stderr that takes a line at once. A program that has closed its own may have a
// file in that place, as every one of ours closes on exec: no line goes there. One that nobody
// reads any more, or not now, costs the line and no transfer.
bool stderr_is_ready() noexcept {
  const int flags = ::fcntl(STDERR_FILENO, F_GETFD);
  if (flags < 0 || (flags & FD_CLOEXEC) != 0) return false;
  pollfd item{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&item, 1, 0) > 0 && item.revents == POLLOUT;
}

void write_line(LogLevel level, std::string_view what, std::string_view text) {
  if (!stderr_is_ready()) return;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);  // UTC: localtime_r takes a lock.
  // Escaped: a peer's text must not be able to forge a second line or move the cursor.
  std::string line =
      fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {} [", parts.tm_year + 1900,
                  parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                  now.tv_nsec / 1'000'000, kLevelNames[static_cast<size_t>(level)]);
  line += escape_control(what);
  line += "] ";
  line += escape_control(text);
  line += '\n';
  // One call, so that lines of several processes do not mix.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void log(LogLevel level, std::string_view what, std::string_view text) {
  if (level >= LogLevel::kOff || !log_enabled(level)) return;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  uint32_t held_back = 0;
  // +1: the zero of a fresh slot is then always in the past.
  const bool admitted = admit(slot_for(what), now.tv_sec + kWindowSeconds + 1, held_back);
  if (held_back > 0)
    write_line(level, what, fmt::format("{} further lines were left out", held_back));
  if (admitted) write_line(level, what, text);
}

void log_failure(std::string_view what, const Status& status) {
  if (!status.ok()) log(LogLevel::kError, what, status.to_string());
}

void set_log_level(LogLevel level) noexcept { g_level.store(static_cast<int>(level)); }

bool log_enabled(LogLevel level) noexcept { return static_cast<int>(level) >= current_level(); }

}  // namespace stagelink
