#include "cli/doctor/log/scan.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "base/unique_fd.h"

namespace stagelink::cli::doctor {
namespace {

constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kSampleBytes = 160;

std::string times(uint64_t count) { return count == 1 ? "once" : fmt::format("{} times", count); }

std::string where(const Sightings& seen) {
  return fmt::format("{}, {} {}{}", times(seen.count), seen.count == 1 ? "line" : "lines",
                     fmt::join(seen.lines, ", "), seen.count > seen.lines.size() ? " and on" : "");
}

Status read_failure(const std::string& file, int error) {
  const std::string what = fmt::format("{}: {}", file, std::strerror(error));
  if (error == ENOENT) return Status(Reason::kNotFound, what);
  return Status(error == EACCES ? Reason::kPermission : Reason::kSystem, what);
}

Status scan_file(const std::string& file, LogScan& scan,
                 const std::function<void(uint64_t, uint64_t)>& progress) {
  UniqueFd opened;
  if (file != "-") {
    opened = UniqueFd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened) return read_failure(file, errno);
  }
  const int fd = file == "-" ? STDIN_FILENO : opened.get();
  struct stat info {};
  const bool sized = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const uint64_t total = sized ? static_cast<uint64_t>(info.st_size) : 0;
  std::vector<char> piece(kPieceBytes);
  uint64_t done = 0;
  for (;;) {
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return read_failure(file, errno);
    if (got == 0) break;
    scan.take({piece.data(), static_cast<size_t>(got)});
    done += static_cast<uint64_t>(got);
    progress(done, total);
  }
  scan.finish();
  return {};
}

// What only a sender's and a receiver's log tell together.
std::vector<Finding> judge_pulls(const std::vector<LogScan>& scans, size_t files) {
  uint64_t sent = 0;
  uint64_t pulled = 0;
  for (const LogScan& scan : scans) {
    sent += scan.sent().count;
    pulled += scan.pulled().count;
  }
  if (sent == 0 && pulled == 0) return {};
  if (sent > 0 && pulled == 0) {
    return {{files == 1 ? Level::kWarning : Level::kError, "never_pulled",
             fmt::format("`{}` {}, `{}` never: payloads were offered, and nobody read one", kSent,
                         times(sent), kPulled),
             "The sender's put() went well; the receiver's read failed, timed out, or never began.",
             files == 1 ? "If this is the log of the sender alone, name the receiver's as well: "
                          "--log SENDER --log RECEIVER. There, look for `transfer_engine get "
                          "failed`."
                        : "Look in the receiver's log for `transfer_engine get failed` and for "
                          "errors of its start."}};
  }
  return {fine(fmt::format("`{}` {}, `{}` {}: payloads arrive", kSent, times(sent), kPulled,
                           times(pulled)))};
}

}  // namespace

void Sightings::add(uint64_t line, std::string_view text) {
  if (count++ == 0) sample = to_plain_text(text, kSampleBytes);
  if (lines.size() < kMaxLines) lines.push_back(line);
}

LogScan::LogScan() : by_symptom_(symptoms().size()) {}

void LogScan::take(std::string_view piece) {
  while (!piece.empty()) {
    const size_t end = piece.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view part = piece.substr(0, end);
    if (whole && begun_.empty() && !has_begun_) {
      take_line(part.substr(0, kMaxLineBytes));
    } else {
      begun_ += part.substr(0, kMaxLineBytes - begun_.size());
      has_begun_ = true;
      if (whole) finish();
    }
    piece.remove_prefix(whole ? end + 1 : piece.size());
  }
}

void LogScan::finish() {
  if (!has_begun_) return;
  take_line(begun_);
  begun_.clear();
  has_begun_ = false;
}

void LogScan::take_line(std::string_view line) {
  ++line_;
  if (line.ends_with('\r')) line.remove_suffix(1);
  const auto has = [line](std::string_view text) {
    return line.find(text) != std::string_view::npos;
  };
  for (size_t at = 0; at < by_symptom_.size(); ++at) {
    const Symptom& symptom = symptoms()[at];
    if (!std::ranges::any_of(symptom.texts, has)) continue;
    if (std::ranges::none_of(symptom.unless, has)) by_symptom_[at].add(line_, line);
  }
  if (has(kSent)) sent_.add(line_, line);
  if (has(kPulled)) pulled_.add(line_, line);
  for (size_t at = 0; at < kArrived.size(); ++at) {
    if (has(kArrived[at])) arrived_[at].add(line_, line);
  }
  if (const auto reason = reason_in(line); reason.has_value()) {
    by_reason_[static_cast<size_t>(*reason)].add(line_, line);
  }
}

std::vector<Finding> LogScan::findings() const {
  std::vector<Finding> out;
  for (size_t at = 0; at < by_symptom_.size(); ++at) {
    const Sightings& seen = by_symptom_[at];
    const Symptom& symptom = symptoms()[at];
    if (seen.count == 0) continue;
    out.push_back({Level::kError, std::string(symptom.cause),
                   fmt::format("{}: {}", where(seen), seen.sample), std::string(symptom.means),
                   std::string(symptom.action)});
  }
  for (size_t at = 0; at < by_reason_.size(); ++at) {
    const Sightings& seen = by_reason_[at];
    if (seen.count == 0) continue;
    const auto reason = static_cast<Reason>(at);
    const Advice advice = advice_for(reason);
    out.push_back({Level::kWarning, std::string(reason_name(reason)),
                   fmt::format("{}: {}", where(seen), seen.sample), std::string(advice.means),
                   std::string(advice.action)});
  }
  for (size_t at = 0; at < kArrived.size(); ++at) {
    if (arrived_[at].count == 0) continue;
    out.push_back(fine(fmt::format("`{}`: {}", kArrived[at], where(arrived_[at]))));
  }
  if (out.empty()) out.push_back(fine(counted(line_, "line") + ", and no known symptom"));
  return out;
}

Result<std::vector<Section>> scan_logs(const std::vector<std::string>& files,
                                       const std::function<void(uint64_t, uint64_t)>& progress) {
  std::vector<Section> sections;
  std::vector<LogScan> scans(files.size());
  for (size_t at = 0; at < files.size(); ++at) {
    SL_TRY(scan_file(files[at], scans[at], progress));
    const std::string name = files[at] == "-" ? "Standard input" : files[at];
    sections.push_back({"log", fmt::format("{} ({})", name, counted(scans[at].lines(), "line")),
                        scans[at].findings()});
  }
  sections.push_back({"log", "Pulls", judge_pulls(scans, files.size())});
  return sections;
}

}  // namespace stagelink::cli::doctor
