#include "cli/doctor/finding.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"
#include "stagelink/version.h"

namespace stagelink::cli::doctor {
namespace {

struct LevelLook {
  std::string_view name;
  std::string_view colour;
};
constexpr std::array<LevelLook, 4> kLooks = {
    {{"ok", "\x1b[32m"}, {"note", "\x1b[36m"}, {"warning", "\x1b[33m"}, {"error", "\x1b[1;31m"}}};
constexpr std::string_view kBold = "\x1b[1m";
constexpr std::string_view kPlain = "\x1b[0m";
constexpr size_t kLevelWidth = 9;  // The widest name, and what stands around it.
constexpr size_t kMarkWidth = 5;   // "why: "

const LevelLook& look_of(Level level) noexcept { return kLooks[static_cast<size_t>(level)]; }

std::string painted(std::string_view text, std::string_view colour, const TextStyle& style) {
  if (!style.colour || text.empty()) return std::string(text);
  return fmt::format("{}{}{}", colour, text, kPlain);
}

// "why: ..." with its further lines below the first one.
std::string marked(std::string_view mark, std::string_view text, const TextStyle& style) {
  if (text.empty()) return {};
  const size_t margin = 2 + kLevelWidth;
  std::string body = indented(text, margin + kMarkWidth, style.columns);
  return fmt::format("{}{:<{}}{}", std::string(margin, ' '), mark, kMarkWidth,
                     body.substr(margin + kMarkWidth));
}

// `explained`: the next finding has the same explanation.
std::string finding_text(const Finding& finding, bool explained, const TextStyle& style) {
  const LevelLook& look = look_of(finding.level);
  const std::string what = indented(finding.what, 2 + kLevelWidth, style.columns);
  const std::string padding(kLevelWidth - look.name.size(), ' ');
  std::string out = fmt::format("  {}{}{}", painted(look.name, look.colour, style), padding,
                                what.substr(2 + kLevelWidth));
  if (explained) return out;
  return out + marked("why:", finding.why, style) + marked("do:", finding.action, style);
}

std::string totals_text(const Totals& totals) {
  std::vector<std::string> parts;
  if (totals.errors > 0) parts.push_back(counted(totals.errors, "error"));
  if (totals.warnings > 0) parts.push_back(counted(totals.warnings, "warning"));
  if (totals.notes > 0) parts.push_back(counted(totals.notes, "note"));
  if (totals.ok > 0) parts.push_back(fmt::format("{} fine", totals.ok));
  if (parts.empty()) return "There was nothing to check.";
  const bool well = totals.errors + totals.warnings == 0;
  return fmt::format("{}{}.", well ? "Nothing is wrong: " : "", fmt::join(parts, ", "));
}

}  // namespace

std::string_view level_name(Level level) noexcept { return look_of(level).name; }

Finding fine(std::string what) { return {Level::kOk, {}, std::move(what), {}, {}}; }

Finding note(std::string cause, std::string what, std::string action) {
  return {Level::kNote, std::move(cause), std::move(what), {}, std::move(action)};
}

Totals Report::totals() const noexcept {
  Totals totals;
  for (const Section& section : sections) {
    for (const Finding& finding : section.findings) {
      switch (finding.level) {
        case Level::kOk: ++totals.ok; break;
        case Level::kNote: ++totals.notes; break;
        case Level::kWarning: ++totals.warnings; break;
        case Level::kError: ++totals.errors; break;
      }
    }
  }
  return totals;
}

std::string report_text(const Report& report, const TextStyle& style) {
  std::string out = fmt::format("stagelink {} looks at {}\n", kVersion, report.subject);
  for (const Section& section : report.sections) {
    if (section.findings.empty()) continue;
    out += "\n" + painted(section.title, kBold, style) + "\n";
    for (size_t at = 0; at < section.findings.size(); ++at) {
      const Finding& finding = section.findings[at];
      const Finding* const next = at + 1 < section.findings.size() ? &finding + 1 : nullptr;
      const bool explained = next != nullptr && next->level == finding.level &&
                             next->why == finding.why && next->action == finding.action;
      out += finding_text(finding, explained, style);
    }
  }
  const Totals totals = report.totals();
  const Level worst = totals.errors > 0     ? Level::kError
                      : totals.warnings > 0 ? Level::kWarning
                                            : Level::kOk;
  return out + "\n" + painted(totals_text(totals), look_of(worst).colour, style) + "\n";
}

std::string report_json(const Report& report) {
  nlohmann::json findings = nlohmann::json::array();
  for (const Section& section : report.sections) {
    for (const Finding& finding : section.findings) {
      findings.push_back({{"check", section.check},
                          {"level", level_name(finding.level)},
                          {"cause", finding.cause},
                          {"what", finding.what},
                          {"why", finding.why},
                          {"do", finding.action}});
    }
  }
  const Totals totals = report.totals();
  const nlohmann::json out = {
      {"version", kVersion},    {"subject", report.subject}, {"findings", std::move(findings)},
      {"ok", totals.ok},        {"notes", totals.notes},     {"warnings", totals.warnings},
      {"errors", totals.errors}};
  // Foreign text that is not UTF-8 must not end the program.
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

TextStyle style_of_output() {
  TextStyle style;
  if (::isatty(STDOUT_FILENO) != 1) return style;
  const char* const plain = std::getenv("NO_COLOR");
  style.colour = plain == nullptr || *plain == '\0';
  winsize size = {};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  constexpr size_t kNarrowest = 40;
  constexpr size_t kWidest = 110;  // Longer lines are hard to read.
  style.columns = known ? std::clamp<size_t>(size.ws_col, kNarrowest, kWidest) : 80;
  return style;
}

std::string indented(std::string_view text, size_t indent, size_t columns) {
  const std::string margin(indent, ' ');
  const size_t room = columns > indent + 20 ? columns - indent : 0;
  std::string out;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    if (room > 0 && end > room) {
      const size_t blank = text.rfind(' ', room);
      end = blank != std::string_view::npos && blank > 0 ? blank : std::min(text.find(' '), end);
    }
    out += margin;
    // Names, paths and peers' words may hold anything: nothing of it may move the cursor.
    out += escape_control(text.substr(0, end));
    out += '\n';
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return out;
}

std::string counted(size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace stagelink::cli::doctor
