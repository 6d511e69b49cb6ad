#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/engine.h"

namespace stagelink::test {

// What a process holds: whoever takes something gives it back before the test ends.
class Gauges {
 public:
  // `runtime_dir`: that of the test's engines.
  explicit Gauges(std::string runtime_dir) noexcept;
  // Empty once all is as it was when this object was made; else, after a bounded wait, what is not.
  std::string difference() const;

 private:
  struct Reading {
    std::vector<std::string> fds;  // "7 -> /dev/null"
    size_t threads = 0;
    std::set<std::string> entries;  // Of the runtime directory, and of ours in the default ones.
  };
  Reading read() const;
  std::string compare(const Reading& now) const;

  const std::string runtime_dir_;
  const Reading before_;
};

size_t open_fds();
size_t running_threads();

// Value of one sample of metrics_text(), by its name without "stagelink_" and, if given, its label
// reason; -1 if it is not there.
double metric(const Engine& engine, std::string_view name, std::string_view reason = {});
double metric_in(std::string_view text, std::string_view name, std::string_view reason = {});

}  // namespace stagelink::test
