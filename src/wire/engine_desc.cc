#include "wire/engine_desc.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/bytes.h"
#include "base/endpoint.h"
#include "base/text.h"
#include "wire/checked_blob.h"
#include "wire/field_reader.h"

namespace stagelink::wire {
namespace {

// "host:port" with a port of 1..65535 and a host that one can connect to.
bool is_reachable_address(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view host = address.substr(0, colon);
  const std::string_view digits = address.substr(colon + 1);
  uint16_t port = 0;
  const auto end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, port);
  if (error != std::errc{} || stop != end || port == 0) return false;
  const bool brackets = host.starts_with('[') && host.ends_with(']');
  return !Endpoint{std::string(brackets ? host.substr(1, host.size() - 2) : host), port}.wildcard();
}

}  // namespace

std::vector<std::byte> encode(const EngineDesc& desc) {
  ByteWriter out;
  out.put(desc.instance.high);
  out.put(desc.instance.low);
  out.put(desc.host.high);
  out.put(desc.host.low);
  out.put_string(to_plain_text(desc.name, kMaxNameBytes));
  out.put_string(to_plain_text(desc.socket_path, kMaxPathBytes));
  const size_t count = std::min(desc.addresses.size(), kMaxAddresses);
  out.put(static_cast<uint16_t>(count));
  for (size_t i = 0; i < count; ++i)
    out.put_string(to_plain_text(desc.addresses[i], kMaxAddressBytes));
  return seal_blob(kEngineDescMagic, desc.version, out.take());
}

Result<EngineDesc> decode_engine_desc(std::span<const std::byte> in) {
  FieldReader reader("engine descriptor", in);
  if (in.size() > kMaxEngineDescBytes) reader.reject("size", "is too large", in.size());
  EngineDesc desc;
  SL_ASSIGN(desc.version, open_blob(reader, in, kEngineDescMagic, "engine descriptor"));
  desc.instance = reader.get_instance("instance");
  desc.host = reader.get_instance("host");
  desc.name = reader.get_text("name", kMaxNameBytes);
  desc.socket_path = reader.get_text("socket_path", kMaxPathBytes);
  const auto count = reader.get<uint16_t>("address_count");
  if (count > kMaxAddresses) reader.reject("address_count", "is too large", count);
  for (uint16_t i = 0; i < count && reader.ok(); ++i) {
    desc.addresses.push_back(reader.get_text("address", kMaxAddressBytes));
    if (reader.ok() && !is_reachable_address(desc.addresses.back())) {
      reader.reject("address", "is not host:port or is a wildcard, number", i);
    }
  }
  SL_TRY(reader.finish(desc.version.minor > own_version().minor));
  return desc;
}

}  // namespace stagelink::wire
