#pragma once

#include <chrono>

namespace stagelink::cli::replay {

// Each half gives the other a sign of life, and gives it up after such a silence. Reaping a process
// may keep a half busy for ten seconds.
inline constexpr auto kPulseInterval = std::chrono::seconds(1);
inline constexpr auto kPulseSilence = std::chrono::seconds(20);

}  // namespace stagelink::cli::replay
