#pragma once

#include <cstdint>
#include <optional>

#include "stagelink/status.h"

// A Reason as two bytes: the code, then the reason's place among the reasons of its code. New
// reasons are appended within their code, so that numbers keep their meaning and a peer that does
// not know a reason still knows its code.
//
//   bits   field
//   15..8  code
//    7..0  place among the reasons of the code; 0 is the reason that carries the code's name
namespace stagelink::wire {

uint16_t pack_reason(Reason reason) noexcept;
// An unknown place becomes the first reason of the code; an unknown code is no reason at all.
std::optional<Reason> unpack_reason(uint16_t packed) noexcept;

}  // namespace stagelink::wire
