#include "wire/checked_blob.h"

#include "base/bytes.h"

namespace stagelink::wire {
namespace {

uint64_t fnv1a(std::span<const std::byte> bytes) noexcept {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace

std::vector<std::byte> seal_blob(uint32_t magic, Version version, std::span<const std::byte> body) {
  ByteWriter out;
  out.put(magic);
  out.put(version.major);
  out.put(version.minor);
  out.put(fnv1a(body));
  out.put_bytes(body);
  return out.take();
}

Result<Version> open_blob(FieldReader& reader, std::span<const std::byte> in, uint32_t magic,
                          const char* what) {
  if (const auto theirs = reader.get<uint32_t>("magic"); theirs != magic) {
    reader.reject("magic", "is another", theirs);
  }
  Version version;
  version.major = reader.get<uint16_t>("version");
  version.minor = reader.get<uint16_t>("version");
  if (reader.ok()) SL_TRY(check_version(version, what));
  const auto check = reader.get<uint64_t>("check");
  if (reader.ok() && check != fnv1a(in.subspan(kBlobHeadBytes))) {
    reader.reject("check", "does not fit the bytes", check);
  }
  return version;
}

}  // namespace stagelink::wire
