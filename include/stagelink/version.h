#pragma once

namespace stagelink {

inline constexpr const char* kVersion = "0.1.0";

// Of every layout and message that leaves the process. A peer of the same major speaks with us if
// its minor is ours or the one before.
inline constexpr int kProtocolMajor = 1;
inline constexpr int kProtocolMinor = 2;

}  // namespace stagelink
