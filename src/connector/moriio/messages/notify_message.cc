#include "connector/moriio/messages/notify_message.h"

#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/moriio/messages/extra_fields.h"
#include "connector/moriio/messages/packed_map.h"

namespace stagelink::moriio {
namespace {

constexpr size_t kMaxKeys = 64;

// A map begins with one of these; among texts only those that begin with U+0780 to U+07FF share
// two of them.
bool begins_as_map(std::byte first) noexcept {
  const auto value = static_cast<uint8_t>(first);
  return (value & 0xf0) == 0x80 || value == 0xde || value == 0xdf;
}

Result<NotifyMessage> decode_legacy(std::span<const std::byte> frame) {
  const std::string_view text(reinterpret_cast<const char*>(frame.data()), frame.size());
  if (text.size() > kMaxIdBytes) {
    return Status(Reason::kTooLarge, fmt::format("notification: an id of {} bytes, the limit is {}",
                                                 text.size(), kMaxIdBytes));
  }
  if (text.empty() || !is_plain_text(text)) {
    return Status(Reason::kFrame, fmt::format("notification: {} bytes that are neither a map nor "
                                              "the plain text of an id",
                                              text.size()));
  }
  return NotifyMessage(LegacyId{std::string(text)});
}

// `typed`: the map names its type. Without one it is of former times, when there were no transfer
// ids and ranks had a default.
RemoteBlocks read_remote_blocks(MapReader& map, bool typed) {
  map.set_what("remote_blocks");
  RemoteBlocks out;
  out.request_id = map.text("req_id", kMaxIdBytes);
  const bool has_transfer = typed || map.has("transfer_id");
  out.transfer_id = has_transfer ? map.text("transfer_id", kMaxIdBytes) : out.request_id;
  out.block_ids = map.integers("block_notify_list", kMaxBlocks, {0, kMaxBlockId});
  if (typed || map.has("decode_rank")) {
    out.decode_rank = static_cast<uint32_t>(map.integer("decode_rank", {0, kMaxDpRank}));
  }
  out.extras = read_extras(map);
  return out;
}

template <typename Message>
Message read_plain(MapReader& map, const char* what) {
  map.set_what(what);
  Message out;
  out.transfer_id = map.text("transfer_id", kMaxIdBytes);
  out.extras = read_extras(map);
  return out;
}

Release read_release(MapReader& map) {
  auto out = read_plain<Release>(map, "release");
  // vLLM 0.32 takes digits here as well.
  out.consumer_tp_size =
      static_cast<uint32_t>(map.integer_or_digits("consumer_tp_size", {1, kMaxTpSize}));
  return out;
}

Result<NotifyMessage> decode_map(MapReader map) {
  const bool typed = map.has("type") || !map.has("req_id");
  const std::string type = typed ? map.text("type", 64) : "remote_blocks";
  NotifyMessage out;
  if (type == "remote_blocks") {
    out = read_remote_blocks(map, typed);
  } else if (type == "write_done") {
    out = read_plain<WriteDone>(map, "write_done");
  } else if (type == "write_failed") {
    out = read_plain<WriteFailed>(map, "write_failed");
  } else if (type == "release") {
    out = read_release(map);
  } else if (type == "renew") {
    out = read_plain<Renew>(map, "renew");
  } else if (map.ok()) {
    return Status(Reason::kUnsupported, fmt::format("notification: unknown type `{}`", type));
  }
  SL_TRY(map.finish());
  return out;
}

struct Writer {
  MapWriter map;

  void operator()(const RemoteBlocks& message) {
    map.text("req_id", message.request_id);
    map.text("transfer_id", message.transfer_id);
    map.integers("block_notify_list", message.block_ids);
    map.integer("decode_rank", message.decode_rank);
    map.text("type", "remote_blocks");
    write_extras(map, message.extras);
  }
  void operator()(const WriteDone& message) { plain("write_done", message); }
  void operator()(const WriteFailed& message) { plain("write_failed", message); }
  void operator()(const Renew& message) { plain("renew", message); }
  void operator()(const Release& message) {
    map.text("type", "release");
    map.text("transfer_id", message.transfer_id);
    map.integer("consumer_tp_size", message.consumer_tp_size);
    write_extras(map, message.extras);
  }
  void operator()(const LegacyId&) {}

 private:
  template <typename Message>
  void plain(std::string_view type, const Message& message) {
    map.text("type", type);
    map.text("transfer_id", message.transfer_id);
    write_extras(map, message.extras);
  }
};

struct TransferId {
  const std::string& operator()(const LegacyId& legacy) const { return legacy.id; }
  template <typename Message>
  const std::string& operator()(const Message& other) const {
    return other.transfer_id;
  }
};

}  // namespace

std::string_view message_type(const NotifyMessage& message) noexcept {
  constexpr std::string_view kTypes[] = {"remote_blocks", "write_done", "write_failed",
                                         "release",       "renew",      "legacy"};
  static_assert(std::size(kTypes) == std::variant_size_v<NotifyMessage>);
  return kTypes[message.index()];
}

const std::string& transfer_id(const NotifyMessage& message) noexcept {
  return std::visit(TransferId{}, message);
}

Result<NotifyMessage> decode_notify_message(std::span<const std::byte> frame) {
  if (frame.empty() || !begins_as_map(frame.front())) return decode_legacy(frame);
  auto map = MapReader::open("notification", frame, {kMaxNotifyBytes, kMaxKeys});
  if (map.ok()) return decode_map(*std::move(map));
  const bool may_be_text = (static_cast<uint8_t>(frame.front()) & 0xc0) == 0xc0;
  auto legacy = may_be_text ? decode_legacy(frame) : Result<NotifyMessage>(map.status());
  return legacy.ok() ? std::move(legacy) : Result<NotifyMessage>(map.status());
}

Result<Bytes> encode(const NotifyMessage& message) {
  Bytes out;
  if (const auto* legacy = std::get_if<LegacyId>(&message)) {
    const auto raw = std::as_bytes(std::span(legacy->id));
    out.assign(raw.begin(), raw.end());
  } else {
    Writer writer;
    std::visit(writer, message);
    out = writer.map.take();
  }
  SL_ASSIGN(const NotifyMessage again, decode_notify_message(out));
  if (again.index() != message.index()) {
    return Status(Reason::kInvalidArgument, "notification: an id that reads as a message");
  }
  return out;
}

}  // namespace stagelink::moriio
