#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace stagelink::test {

// The system calls that all threads of a traced child made between mark(n) and the next mark, by
// n. A mark of 0 ends a window.
using CallsByMark = std::map<uint32_t, std::map<uint64_t, uint64_t>>;

// In the child: begins window `number`.
void mark(uint32_t number) noexcept;

struct TracedRun {
  int exit_code = -1;
  CallsByMark calls;

  uint64_t total(uint32_t number) const;
  // "futex 12, write 3": for a failure's message. Numbers where a name is not known.
  std::string list(uint32_t number) const;
};

// Runs `body` in a forked child whose threads are traced, until the child ends; its return value is
// the exit code. Nothing if this system does not let one process trace another. The child is killed
// after `seconds`.
std::optional<TracedRun> run_traced(const std::function<int()>& body, unsigned seconds);

}  // namespace stagelink::test
