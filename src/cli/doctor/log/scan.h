#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/doctor/finding.h"
#include "cli/doctor/log/symptoms.h"
#include "stagelink/result.h"

namespace stagelink::cli::doctor {

// Where something was seen, in bounded memory.
struct Sightings {
  static constexpr size_t kMaxLines = 5;
  uint64_t count = 0;
  std::vector<uint64_t> lines;  // The first of them.
  std::string sample;           // The first line, cut.

  void add(uint64_t line, std::string_view text);
};

// Reads a log piece by piece and remembers which symptoms it shows.
//
// Thread-safety: none; used by one thread.
class LogScan {
 public:
  static constexpr size_t kMaxLineBytes = 64 << 10;  // What lies behind is not looked at.

  LogScan();
  void take(std::string_view piece);
  void finish();

  uint64_t lines() const noexcept { return line_; }
  const Sightings& sent() const noexcept { return sent_; }
  const Sightings& pulled() const noexcept { return pulled_; }
  // One finding a symptom, the most serious first.
  std::vector<Finding> findings() const;

 private:
  void take_line(std::string_view line);

  std::string begun_;  // A line whose end has not come, cut at kMaxLineBytes.
  bool has_begun_ = false;
  uint64_t line_ = 0;
  Sightings sent_;
  Sightings pulled_;
  std::array<Sightings, kArrived.size()> arrived_;
  std::vector<Sightings> by_symptom_;
  std::array<Sightings, kReasonCount> by_reason_;
};

// `files`: paths, "-" for standard input. One section a file, and one about what the logs show only
// together. `progress` is told bytes read and bytes in all (0: unknown). Errors: not_found,
// permission.
Result<std::vector<Section>> scan_logs(const std::vector<std::string>& files,
                                       const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace stagelink::cli::doctor
