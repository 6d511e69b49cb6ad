#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stagelink::cli::doctor {

// A note is neither good nor bad: what could not be looked at, or is as one may want it.
enum class Level : uint8_t { kOk, kNote, kWarning, kError };
std::string_view level_name(Level level) noexcept;

struct Finding {
  Level level = Level::kOk;
  std::string cause;   // For scripts, "port_held"; empty if all is well.
  std::string what;    // One sentence, with the values.
  std::string why;     // Why it matters; empty if all is well.
  std::string action;  // What to do.
};

Finding fine(std::string what);
Finding note(std::string cause, std::string what, std::string action = {});

// What one family of checks has found.
struct Section {
  std::string check;  // For scripts and --only, "ports".
  std::string title;  // For people.
  std::vector<Finding> findings;
};

struct Totals {
  size_t ok = 0;
  size_t notes = 0;
  size_t warnings = 0;
  size_t errors = 0;
};

// All that was found about one subject.
struct Report {
  std::string subject;  // "this machine", or the file that was read.
  std::vector<Section> sections;

  Totals totals() const noexcept;
};

struct TextStyle {
  bool colour = false;
  size_t columns = 0;  // Lines are broken there; 0: never.
};

// For people.
std::string report_text(const Report& report, const TextStyle& style);
// For scripts: one object.
std::string report_json(const Report& report);

// What standard output is: colour on a terminal alone, and not where NO_COLOR is set.
TextStyle style_of_output();
// Paragraphs of `text`, broken at `columns` (0: never), each line behind `indent` blanks.
std::string indented(std::string_view text, size_t indent, size_t columns);
// "1 error", "2 errors".
std::string counted(size_t count, std::string_view noun);

}  // namespace stagelink::cli::doctor
