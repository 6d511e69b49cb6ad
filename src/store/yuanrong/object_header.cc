#include "store/yuanrong/object_header.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/text.h"
#include "store/yuanrong/channel/protocol.h"

namespace stagelink::store::yuanrong {
namespace {

constexpr uint64_t kHeaderMagic = 0x31424f5259'4c5473;  // "sTLYROB1"
constexpr uint16_t kHeaderVersion = 1;
constexpr size_t kFixedBytes = 64;
constexpr size_t kCheckAt = 56;
constexpr size_t kMaxHeaderKeyBytes = 1024;
constexpr uint64_t kMaxChunks = 1 << 20;

uint64_t fnv(uint64_t sum, std::span<const std::byte> bytes) noexcept {
  for (const std::byte byte : bytes) {
    sum = (sum ^ static_cast<uint64_t>(byte)) * 0x100000001b3ULL;
  }
  return sum;
}

uint64_t header_check(std::span<const std::byte> header) noexcept {
  const uint64_t first = fnv(0xcbf29ce484222325ULL, header.first(kCheckAt));
  return fnv(first, header.subspan(kFixedBytes));
}

Status not_ours(const std::string& why) { return Status(Reason::kCorrupt, "the value " + why); }

// The fields agree with each other and with what is there.
bool fits(const ObjectHeader& header, uint64_t behind) noexcept {
  switch (header.kind) {
    case ObjectKind::kWhole: return header.size == behind;
    case ObjectKind::kChunk: return header.chunk_bytes == behind && behind <= header.size;
    case ObjectKind::kManifest:
      return behind == 0 && header.chunk_bytes > 0 && header.chunk_bytes <= kMaxObjectBytes &&
             header.chunks <= kMaxChunks &&
             header.size / header.chunk_bytes + (header.size % header.chunk_bytes != 0 ? 1 : 0) ==
                 header.chunks;
  }
  return false;
}

}  // namespace

size_t header_bytes(size_t key_bytes) noexcept {
  return kFixedBytes + (key_bytes + kFixedBytes - 1) / kFixedBytes * kFixedBytes;
}

void write_header(const ObjectHeader& header, std::span<std::byte> out) noexcept {
  const std::span<std::byte> all = out.first(header_bytes(header.key.size()));
  std::fill(all.begin(), all.end(), std::byte{0});
  const auto put = [&](size_t at, auto value) {
    std::memcpy(all.data() + at, &value, sizeof(value));
  };
  put(0, kHeaderMagic);
  put(8, kHeaderVersion);
  put(12, static_cast<uint32_t>(all.size()));
  put(16, header.size);
  put(24, header.generation);
  put(32, header.kind);
  put(36, header.chunks);
  put(40, header.chunk_bytes);
  put(48, static_cast<uint32_t>(header.key.size()));
  std::memcpy(all.data() + kFixedBytes, header.key.data(), header.key.size());
  put(kCheckAt, header_check(all));
}

Result<ObjectHeader> read_header(std::span<const std::byte> value, std::string_view key) {
  if (value.size() < kFixedBytes) return not_ours(fmt::format("has {} bytes only", value.size()));
  // Copied first: whoever has the worker's memory could change it under us.
  std::array<std::byte, kFixedBytes + kMaxHeaderKeyBytes> copy{};
  const size_t copied = std::min(copy.size(), value.size());
  std::memcpy(copy.data(), value.data(), copied);
  ByteReader reader(std::span<const std::byte>(copy.data(), kFixedBytes));
  if (reader.get<uint64_t>() != kHeaderMagic) return not_ours("was not put by stagelink");
  if (const auto version = reader.get<uint16_t>(); version != kHeaderVersion) {
    return Status(Reason::kVersion,
                  fmt::format("the value is of version {} of its header, this is {}", version,
                              kHeaderVersion));
  }
  (void)reader.get<uint16_t>();
  const auto bytes = reader.get<uint32_t>();
  ObjectHeader header;
  header.size = reader.get<uint64_t>();
  header.generation = reader.get<uint64_t>();
  header.kind = reader.get<ObjectKind>();
  header.chunks = reader.get<uint32_t>();
  header.chunk_bytes = reader.get<uint64_t>();
  const auto key_bytes = reader.get<uint32_t>();
  (void)reader.get<uint32_t>();
  const auto check = reader.get<uint64_t>();
  if (key_bytes > kMaxHeaderKeyBytes || bytes != header_bytes(key_bytes) || bytes > copied ||
      check != header_check(std::span<const std::byte>(copy.data(), bytes))) {
    return not_ours("has a damaged header");
  }
  header.key.assign(reinterpret_cast<const char*>(copy.data()) + kFixedBytes, key_bytes);
  if (header.key != key) {
    return not_ours(fmt::format("is of another key: \"{}\"", to_plain_text(header.key, 100)));
  }
  if (!fits(header, value.size() - bytes)) {
    return not_ours(
        fmt::format("has {} bytes behind its header, which does not fit", value.size() - bytes));
  }
  return header;
}

}  // namespace stagelink::store::yuanrong
