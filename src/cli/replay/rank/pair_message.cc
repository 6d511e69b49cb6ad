#include "cli/replay/rank/pair_message.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/bytes.h"

namespace stagelink::cli::replay {
namespace {

constexpr uint16_t kMagic = 0x5072;  // "rP"
constexpr uint8_t kVersion = 1;

void put_blob(ByteWriter& out, std::span<const std::byte> blob) {
  out.put(static_cast<uint16_t>(blob.size()));
  out.put_bytes(blob);
}
std::vector<std::byte> get_blob(ByteReader& in) {
  const auto blob = in.get_bytes(in.get<uint16_t>());
  return {blob.begin(), blob.end()};
}

void put_body(ByteWriter& out, const Hello& hello) {
  const Layout& layout = hello.layout;
  out.put(hello.rank);
  for (const uint32_t field : {layout.layers, layout.parts, layout.heads, layout.vector_bytes,
                               layout.block_tokens, layout.pool_blocks}) {
    out.put(field);
  }
  put_blob(out, hello.descriptor);
  put_blob(out, hello.region);
}
void get_body(ByteReader& in, Hello& hello) {
  Layout& layout = hello.layout;
  hello.rank = in.get<uint32_t>();
  for (uint32_t* field : {&layout.layers, &layout.parts, &layout.heads, &layout.vector_bytes,
                          &layout.block_tokens, &layout.pool_blocks}) {
    *field = in.get<uint32_t>();
  }
  hello.descriptor = get_blob(in);
  hello.region = get_blob(in);
}

void put_record(ByteWriter& out, const AskRecord& record) {
  out.put(record.key.id);
  out.put(record.key.first_token);
  out.put(record.block);
}
void get_record(ByteReader& in, AskRecord& record) {
  record.key.id = in.get<uint64_t>();
  record.key.first_token = in.get<uint32_t>();
  record.block = in.get<uint32_t>();
}
void put_record(ByteWriter& out, const ReadyRecord& record) {
  out.put(record.checksum);
  out.put(record.block);
}
void get_record(ByteReader& in, ReadyRecord& record) {
  record.checksum = in.get<uint64_t>();
  record.block = in.get<uint32_t>();
}
void put_record(ByteWriter& out, uint32_t position) { out.put(position); }
void get_record(ByteReader& in, uint32_t& position) { position = in.get<uint32_t>(); }

template <typename Record>
constexpr size_t kRecordBytes = 0;
template <>
constexpr size_t kRecordBytes<AskRecord> = 16;
template <>
constexpr size_t kRecordBytes<ReadyRecord> = 12;
template <>
constexpr size_t kRecordBytes<uint32_t> = 4;

template <typename Record>
void put_body(ByteWriter& out, const ListPart<Record>& part) {
  out.put(part.first);
  out.put(part.total);
  out.put(static_cast<uint32_t>(part.records.size()));
  for (const Record& record : part.records) put_record(out, record);
}
template <typename Record>
void get_body(ByteReader& in, ListPart<Record>& part) {
  part.first = in.get<uint32_t>();
  part.total = in.get<uint32_t>();
  const auto count = in.get<uint32_t>();
  const uint64_t end = uint64_t{part.first} + count;
  if (part.total > kMaxListRecords || end > part.total ||
      count * kRecordBytes<Record> != in.left()) {
    in.fail();
    return;
  }
  part.records.resize(count);
  for (Record& record : part.records) get_record(in, record);
}

void put_body(ByteWriter&, const Done&) {}
void get_body(ByteReader&, Done&) {}
void put_body(ByteWriter& out, const Failed& failed) { out.put(failed.reason); }
void get_body(ByteReader& in, Failed& failed) {
  const auto reason = in.get<uint8_t>();
  if (reason == 0 || reason >= kReasonCount) {
    in.fail();
    return;
  }
  failed.reason = static_cast<Reason>(reason);
}

// Reads a body of the variant's alternative number `type`.
template <size_t I = 0>
void get_body_of(uint8_t type, ByteReader& in, decltype(PairMessage::body)& body) {
  if constexpr (I == std::variant_size_v<decltype(PairMessage::body)>) {
    in.fail();
  } else if (type == I) {
    get_body(in, body.emplace<I>());
  } else {
    get_body_of<I + 1>(type, in, body);
  }
}

template <typename Record>
std::vector<PairMessage> cut(uint32_t request, uint32_t attempt, std::span<const Record> records) {
  constexpr size_t kPerPart = records_per_part(kRecordBytes<Record>);
  std::vector<PairMessage> messages;
  size_t at = 0;
  do {
    const auto here = records.subspan(at, std::min(kPerPart, records.size() - at));
    ListPart<Record> part{static_cast<uint32_t>(at),
                          static_cast<uint32_t>(records.size()),
                          {here.begin(), here.end()}};
    messages.push_back({request, attempt, std::move(part)});
    at += here.size();
  } while (at < records.size());
  return messages;
}

}  // namespace

std::vector<std::byte> encode(const PairMessage& message) {
  ByteWriter out;
  out.put(kMagic);
  out.put(kVersion);
  out.put(static_cast<uint8_t>(message.body.index()));
  out.put(message.request);
  out.put(message.attempt);
  std::visit([&out](const auto& body) { put_body(out, body); }, message.body);
  return out.take();
}

Result<PairMessage> decode_pair_message(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto magic = in.get<uint16_t>();
  const auto version = in.get<uint8_t>();
  const auto type = in.get<uint8_t>();
  if (magic != kMagic) {
    return Status(Reason::kFrame,
                  fmt::format("a message of {} bytes is none of a replay's ranks", bytes.size()));
  }
  if (version != kVersion) {
    return Status(Reason::kVersion,
                  fmt::format("the peer speaks replay version {}, here {}", version, kVersion));
  }
  PairMessage message;
  message.request = in.get<uint32_t>();
  message.attempt = in.get<uint32_t>();
  get_body_of(type, in, message.body);
  if (!in.done()) {
    return Status(Reason::kFrame,
                  fmt::format("message type {} of {} bytes is malformed", type, bytes.size()));
  }
  return message;
}

std::vector<PairMessage> in_parts(uint32_t request, uint32_t attempt,
                                  std::span<const AskRecord> records) {
  return cut(request, attempt, records);
}
std::vector<PairMessage> in_parts(uint32_t request, uint32_t attempt,
                                  std::span<const ReadyRecord> records) {
  return cut(request, attempt, records);
}
std::vector<PairMessage> in_parts(uint32_t request, uint32_t attempt,
                                  std::span<const uint32_t> positions) {
  return cut(request, attempt, positions);
}

template <typename Record>
Status append_part(std::vector<Record>& list, const ListPart<Record>& part) {
  if (part.first != list.size()) {
    return Status(Reason::kFrame, fmt::format("part at {} of a list of which {} are here",
                                              part.first, list.size()));
  }
  list.insert(list.end(), part.records.begin(), part.records.end());
  return {};
}
template Status append_part(std::vector<AskRecord>&, const AskPart&);
template Status append_part(std::vector<ReadyRecord>&, const ReadyPart&);
template Status append_part(std::vector<uint32_t>&, const AgainPart&);

}  // namespace stagelink::cli::replay
