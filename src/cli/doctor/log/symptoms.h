#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "cli/doctor/finding.h"
#include "stagelink/status.h"

namespace stagelink::cli::doctor {

// A text that logs show when something is wrong, and what it means.
struct Symptom {
  std::string_view cause;                    // For scripts.
  std::span<const std::string_view> texts;   // Any of them, exactly so.
  std::span<const std::string_view> unless;  // Not on a line that has one of these.
  std::string_view means;
  std::string_view action;
};
std::span<const Symptom> symptoms() noexcept;

// Lines of transfers that went well, and what each proves.
inline constexpr std::string_view kSent = "KV transfer OK";
inline constexpr std::string_view kPulled = "[YR GET]";
inline constexpr std::array<std::string_view, 3> kArrived = {"Successfully received KV cache",
                                                             "Applied CFG KV caches", "[KV Reuse]"};

// What a reason of ours asks for; empty for those that need a look at the message alone.
struct Advice {
  std::string_view means;
  std::string_view action;
};
Advice advice_for(Reason reason) noexcept;

// The reason that a line of ours names: "... error [peer decode-0] refused (unreachable): ...".
std::optional<Reason> reason_in(std::string_view line) noexcept;

}  // namespace stagelink::cli::doctor
