#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "stagelink/result.h"

namespace stagelink::cli::replay {

// One hash id of a trace stands for this many tokens; the last one of a request may hold fewer.
inline constexpr uint32_t kTokensPerId = 512;

struct TraceRequest {
  uint64_t timestamp_ms = 0;
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  std::vector<uint64_t>
      hash_ids;  // Equal ids are equal prefixes. ceil(input_tokens / 512) of them.
};

// One line of a trace in the format of Mooncake: a JSON object with timestamp, input_length,
// output_length and hash_ids. Other fields are ignored. `where` ("file:line") opens the messages.
// Errors: invalid_argument names the field and its value; limit (too_large).
Result<TraceRequest> parse_trace_line(const std::string& line, const std::string& where);

// Reads a trace line by line, with bounded memory whatever the file holds.
//
// Thread-safety: one thread.
class TraceReader {
 public:
  static constexpr size_t kMaxLineBytes = 1 << 20;
  static constexpr uint32_t kMaxTokens = 1 << 22;

  // Errors: not_found, permission, invalid_argument (a directory), invalid_state (system).
  static Result<TraceReader> open(const std::string& path);

  // Empty at the end of the file. Blank lines are skipped.
  Result<std::optional<TraceRequest>> next();

 private:
  TraceReader(std::string path, std::ifstream file);

  std::string path_;
  std::ifstream file_;
  std::string line_;
  uint64_t line_number_ = 0;
};

}  // namespace stagelink::cli::replay
