#include "connector/moriio/wrapper/rejects.h"

#include <fmt/format.h>

#include "base/log.h"

namespace stagelink::moriio {
namespace {

constexpr std::array<std::string_view, kRejectCount> kNames = {
    "malformed", "unknown_type", "bad_field", "too_large", "frames", "wrong_role",
    "token",     "duplicate",    "late",      "writing",   "full",   "expired"};

}  // namespace

std::string_view reject_name(Reject reason) noexcept { return kNames[static_cast<size_t>(reason)]; }

void RejectCounter::count(Reject reason, std::string_view detail) {
  counts_[static_cast<size_t>(reason)].fetch_add(1);
  // Repeated and late messages are the network's everyday; the rest is somebody's mistake.
  const bool usual = reason == Reject::kDuplicate || reason == Reject::kLate;
  log(usual ? LogLevel::kDebug : LogLevel::kWarning, where_,
      fmt::format("message not acted upon ({}): {}", reject_name(reason), detail));
}

uint64_t RejectCounter::total() const noexcept {
  uint64_t sum = 0;
  for (const auto& count : counts_) sum += count.load();
  return sum;
}

}  // namespace stagelink::moriio
