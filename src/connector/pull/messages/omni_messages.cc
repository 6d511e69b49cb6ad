#include "connector/pull/messages/omni_messages.h"

#include <cstring>

#include <fmt/format.h>

#include "connector/moriio/messages/packed_map.h"
#include "connector/pull/pull_types.h"
#include "connector/serializer/pack_writer.h"

namespace stagelink::pull {
namespace {

using moriio::MapReader;

constexpr std::string_view kQueryWord = "query_info";
constexpr std::string_view kCleanupWord = "cleanup_key";
constexpr MapReader::Limits kOmniLimits = {kMaxOmniFrameBytes, 16};
constexpr uint64_t kMaxAddress = (uint64_t{1} << 63) - 1;

std::string_view text_of(MessageSpan in) noexcept {
  return {reinterpret_cast<const char*>(in.data()), in.size()};
}

std::string read_key(MessageSpan map) {
  auto reader = MapReader::open("request of 0.30", map, kOmniLimits);
  if (!reader.ok()) return {};
  std::string key = reader->text("request_id", kMaxKeyBytes);
  return reader->finish().ok() ? key : std::string();
}

Message packed(serializer::PackWriter writer) { return writer.take(); }

}  // namespace

std::optional<OmniAsk> read_omni_request(MessageSpan in) {
  const std::string_view text = text_of(in);
  if (text.starts_with(kQueryWord)) {
    return OmniAsk{OmniRequest::kQuery, read_key(in.subspan(kQueryWord.size()))};
  }
  if (text.starts_with(kCleanupWord)) {
    return OmniAsk{OmniRequest::kCleanup, read_key(in.subspan(kCleanupWord.size()))};
  }
  return std::nullopt;
}

Message omni_request(OmniRequest request, std::string_view key) {
  const std::string_view word = request == OmniRequest::kQuery ? kQueryWord : kCleanupWord;
  serializer::PackWriter writer;
  writer.raw(std::as_bytes(std::span(word.data(), word.size())));
  writer.map_head(1, 1);
  writer.text("request_id");
  writer.text(key);
  return packed(std::move(writer));
}

Message omni_info(const OmniInfo& info) {
  serializer::PackWriter writer;
  writer.map_head(6, 6);
  writer.text("request_id");
  writer.text(info.key);
  writer.text("rpc_port");
  writer.unsigned_integer(info.rpc_port);
  writer.text("data_size");
  writer.unsigned_integer(info.data_size);
  writer.text("is_fast_path");
  writer.boolean(info.is_fast_path);
  const auto list = [&](std::string_view name, const std::vector<uint64_t>& values) {
    writer.text(name);
    writer.list_head(values.size());
    for (const uint64_t value : values) writer.unsigned_integer(value);
  };
  list("src_addrs", info.addresses);
  list("lengths", info.lengths);
  return packed(std::move(writer));
}

Result<OmniInfo> read_omni_info(MessageSpan in) {
  SL_ASSIGN(MapReader reader, MapReader::open("answer of 0.30", in, kOmniLimits));
  OmniInfo info;
  info.key = reader.text("request_id", kMaxKeyBytes);
  info.rpc_port = static_cast<uint16_t>(reader.integer("rpc_port", {1, 65535}));
  info.data_size = reader.integer("data_size", {1, kMaxPayloadBytes});
  info.is_fast_path = reader.flag("is_fast_path");
  const auto addresses = reader.integers("src_addrs", kMaxOfferPieces, {1, kMaxAddress});
  const auto lengths = reader.integers("lengths", kMaxOfferPieces, {1, kMaxPayloadBytes});
  SL_TRY(reader.finish());
  info.addresses.assign(addresses.begin(), addresses.end());
  info.lengths.assign(lengths.begin(), lengths.end());
  uint64_t total = 0;
  for (const uint64_t length : info.lengths) total += length;  // At most 4096 times 2^48.
  if (total != info.data_size || info.addresses.size() != info.lengths.size()) {
    return Status(Reason::kFrame,
                  fmt::format("answer of 0.30: {} addresses and {} lengths, in all {} bytes, for a "
                              "payload of {}",
                              info.addresses.size(), info.lengths.size(), total, info.data_size));
  }
  return info;
}

Message omni_word(std::string_view word) {
  const auto bytes = std::as_bytes(std::span(word.data(), word.size()));
  return {bytes.begin(), bytes.end()};
}

bool is_omni_word(MessageSpan in, std::string_view word) noexcept { return text_of(in) == word; }

}  // namespace stagelink::pull
