#include "wire/reason_code.h"

#include <array>

namespace stagelink::wire {
namespace {

struct CodeSpan {
  uint8_t first = 0;
  uint8_t count = 0;
};

// Reasons of one code stand next to each other in the enumeration.
std::array<CodeSpan, kCodeCount> make_spans() noexcept {
  std::array<CodeSpan, kCodeCount> spans{};
  for (int i = 0; i < kReasonCount; ++i) {
    CodeSpan& span = spans[static_cast<size_t>(code_of(static_cast<Reason>(i)))];
    if (span.count == 0) span.first = static_cast<uint8_t>(i);
    ++span.count;
  }
  return spans;
}

const std::array<CodeSpan, kCodeCount>& spans() noexcept {
  static const auto kSpans = make_spans();
  return kSpans;
}

}  // namespace

uint16_t pack_reason(Reason reason) noexcept {
  const auto code = static_cast<uint16_t>(code_of(reason));
  const auto place = static_cast<uint16_t>(static_cast<uint16_t>(reason) - spans()[code].first);
  return static_cast<uint16_t>(code << 8 | place);
}

std::optional<Reason> unpack_reason(uint16_t packed) noexcept {
  const auto code = static_cast<size_t>(packed >> 8);
  if (code >= spans().size()) return std::nullopt;
  const CodeSpan span = spans()[code];
  const auto place = static_cast<uint8_t>(packed & 0xff);
  return static_cast<Reason>(span.first + (place < span.count ? place : 0));
}

}  // namespace stagelink::wire
