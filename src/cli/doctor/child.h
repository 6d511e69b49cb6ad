#pragma once

#include <string>
#include <vector>

#include "base/deadline.h"
#include "stagelink/result.h"

namespace stagelink::cli::doctor {

struct ChildOutput {
  int exit_code = 0;  // -signal if one ended it.
  std::string text;   // Of both outputs, cut after kMaxChildBytes.
};

inline constexpr size_t kMaxChildBytes = 64 << 10;

// Runs a program with nothing on its input, and kills it (and what it started, unless that has left
// its process group) if it has not ended in time. Errors: timed_out, not_found, permission, limit.
Result<ChildOutput> run_program(const std::vector<std::string>& command, const Deadline& deadline);

}  // namespace stagelink::cli::doctor
