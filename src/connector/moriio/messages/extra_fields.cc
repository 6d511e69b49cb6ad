#include "connector/moriio/messages/extra_fields.h"

#include "base/text.h"

namespace stagelink::moriio {
namespace {

constexpr size_t kMaxHashBytes = 128;
constexpr size_t kMaxStatusBytes = 512;
constexpr size_t kMaxTokenBytes = 256;

}  // namespace

MessageExtras read_extras(MapReader& map) {
  MessageExtras extras;
  if (!map.has("version")) return extras;
  extras.version = static_cast<uint32_t>(map.integer("version", {1, 0xffff}));
  const auto text = [&map](std::string_view key, size_t max, std::optional<std::string>& out) {
    if (map.has(key)) out = map.text(key, max);
  };
  const auto rank = [&map](std::string_view key, IntegerRange range, std::optional<uint32_t>& out) {
    if (map.has(key)) out = static_cast<uint32_t>(map.integer(key, range));
  };
  text("compat_hash", kMaxHashBytes, extras.compat_hash);
  text("incarnation", kMaxHashBytes, extras.incarnation);
  text("status", kMaxStatusBytes, extras.status);
  text("token", kMaxTokenBytes, extras.token);
  if (map.has("first_block")) extras.first_block = map.integer("first_block", {0, kMaxBlockId});
  rank("tp_size", {1, kMaxTpSize}, extras.tp_size);
  rank("tp_rank", {0, kMaxTpSize - 1}, extras.tp_rank);
  rank("writes", {1, kMaxTpSize}, extras.writes);
  if (map.has("block_groups")) {
    extras.block_groups =
        map.integer_lists("block_groups", kMaxBlockGroups, kMaxBlocks, {0, kMaxBlockId});
  }
  return extras;
}

void write_extras(MapWriter& map, const MessageExtras& extras) {
  if (extras == MessageExtras{}) return;
  map.integer("version", extras.version.value_or(kMessageVersion));
  const auto text = [&map](std::string_view key, const std::optional<std::string>& value) {
    if (value.has_value()) map.text(key, *value);
  };
  text("compat_hash", extras.compat_hash);
  text("incarnation", extras.incarnation);
  // It may be another library's message, and what must be said must not fail for its text.
  if (extras.status.has_value()) map.text("status", to_plain_text(*extras.status, kMaxStatusBytes));
  text("token", extras.token);
  if (extras.first_block.has_value()) map.integer("first_block", *extras.first_block);
  if (extras.tp_size.has_value()) map.integer("tp_size", *extras.tp_size);
  if (extras.tp_rank.has_value()) map.integer("tp_rank", *extras.tp_rank);
  if (extras.writes.has_value()) map.integer("writes", *extras.writes);
  if (!extras.block_groups.empty()) map.integer_lists("block_groups", extras.block_groups);
}

}  // namespace stagelink::moriio
