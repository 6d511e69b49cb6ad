#include "cli/replay/halves/half_message.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "base/text.h"

namespace stagelink::cli::replay {
namespace {

using Json = nlohmann::json;

Status malformed(const Json& message) {
  const std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  return Status(Reason::kFrame, fmt::format("not a message between halves: {}",
                                            escape_control(text.substr(0, 120))));
}

bool is_number(const Json& message, const char* name, uint64_t below) {
  const auto found = message.find(name);
  return found != message.end() && found->is_number_unsigned() && found->get<uint64_t>() < below;
}

bool is_reason(const Json& message, const char* name) {
  const auto found = message.find(name);
  if (found == message.end() || !found->is_string()) return false;
  const auto text = found->get<std::string>();
  for (size_t i = 0; i < kReasonCount; ++i) {
    if (reason_name(static_cast<Reason>(i)) == text) return true;
  }
  return false;
}

// The message inside, an object with an event.
const Json* inner(const Json& message) {
  const auto found = message.find("message");
  if (found == message.end() || !found->is_object()) return nullptr;
  const auto event = found->find("event");
  return event != found->end() && event->is_string() ? &*found : nullptr;
}

}  // namespace

Json half_message(const char* event, RankLife life) {
  return {{"event", event}, {"rank", life.rank}, {"life", life.life}};
}

Result<RankLife> life_of(const Json& message, uint32_t ranks) {
  if (!is_number(message, "rank", ranks) || !is_number(message, "life", UINT32_MAX)) {
    return malformed(message);
  }
  return RankLife{message["rank"].get<uint32_t>(), message["life"].get<uint32_t>()};
}

Result<Json> told(const Json& message, uint32_t decode_ranks) {
  const Json* const inside = inner(message);
  if (inside == nullptr) return malformed(message);
  const Json& event = (*inside)["event"];
  if (event == "ping" || event == "stop") return Json{{"event", event}};
  if (event == "peer_gone" && is_number(*inside, "rank", decode_ranks)) {
    return Json{{"event", event}, {"rank", (*inside)["rank"]}};
  }
  return malformed(message);
}

Result<Json> said(const Json& message) {
  constexpr std::array<std::string_view, 6> kEvents = {"ready", "failed",  "transfer",
                                                       "error", "stopped", "pong"};
  const Json* const inside = inner(message);
  if (inside == nullptr) return malformed(message);
  const auto event = (*inside)["event"].get<std::string>();
  if (std::ranges::find(kEvents, event) == kEvents.end()) return malformed(message);
  // Causes become keys of the report: only those that exist.
  if (event == "error" && !is_reason(*inside, "cause")) return malformed(message);
  return *inside;
}

}  // namespace stagelink::cli::replay
