#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace stagelink::pull {

// Answers a control message, at any time and from any thread, and never waits.
using ForeignAnswer = std::function<void(std::span<const std::byte> answer)>;

// Takes the control messages that are none of ours, on the thread that receives them, where it is
// not to wait. False: it is not for them either.
using ForeignMessages =
    std::function<bool(std::span<const std::byte> message, const ForeignAnswer& answer)>;

}  // namespace stagelink::pull
