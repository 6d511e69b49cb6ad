#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace stagelink::cli::replay {

// A progress bar on stderr, if that is a terminal; nothing otherwise.
//
// Thread-safety: one thread.
class Progress {
 public:
  explicit Progress(bool wanted);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Redraws at most ten times a second.
  void show(uint64_t done, uint64_t total, const std::string& text);
  void clear();

 private:
  const bool active_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_;
};

// "[######......] 42/200  text", no longer than `columns`.
std::string progress_line(uint64_t done, uint64_t total, const std::string& text, size_t columns);

}  // namespace stagelink::cli::replay
