#include "connector/encoder_cache/registry/entry.h"

#include <charconv>

#include <fmt/format.h>

#include "base/endpoint.h"
#include "base/text.h"
#include "connector/serializer/dtype.h"

namespace stagelink::encoder_cache {
namespace {

constexpr uint64_t kMaxDim = 0xffff'ffff;
constexpr std::string_view kTcpScheme = "tcp://";

Status bad_entry(std::string message) {
  return Status(Reason::kInvalidArgument, std::move(message));
}

bool lower_hex(std::string_view text) noexcept {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

Result<InstanceId> parse_instance(std::string_view text) {
  InstanceId id;
  if (text.size() != 32 || !lower_hex(text)) {
    return bad_entry(
        fmt::format("\"{}\" are not 32 lower-case hex digits", to_plain_text(text, 64)));
  }
  std::from_chars(text.data(), text.data() + 16, id.high, 16);
  std::from_chars(text.data() + 16, text.data() + 32, id.low, 16);
  return id;
}

Status check_mm_hash(std::string_view mm_hash) {
  if (mm_hash.empty() || mm_hash.size() > kMaxHashBytes) {
    return bad_entry(
        fmt::format("mm_hash has {} bytes; 1 to {} can be", mm_hash.size(), kMaxHashBytes));
  }
  if (!is_plain_text(mm_hash)) {
    return bad_entry(
        fmt::format("mm_hash \"{}\" is not plain UTF-8 text", to_plain_text(mm_hash, 64)));
  }
  return {};
}

Status check_embedding(const EmbeddingInfo& info) {
  const serializer::Dtype* const dtype = serializer::find_dtype(info.dtype);
  if (dtype == nullptr) {
    return bad_entry(fmt::format("dtype \"{}\" is none that an embedding may have",
                                 to_plain_text(info.dtype, 64)));
  }
  if (info.shape.size() > kMaxShapeDims) {
    return bad_entry(fmt::format("shape has {} dimensions; at most {} can be", info.shape.size(),
                                 kMaxShapeDims));
  }
  uint64_t bytes = dtype->bytes;
  for (const uint64_t dim : info.shape) {
    if (dim == 0 || dim > kMaxDim) {
      return bad_entry(fmt::format("shape has a dimension of {}; 1 to {} can be", dim, kMaxDim));
    }
    if (__builtin_mul_overflow(bytes, dim, &bytes)) {
      return bad_entry(fmt::format("shape [{}] has more bytes than can be counted",
                                   fmt::join(info.shape, ", ")));
    }
  }
  if (bytes != info.nbytes) {
    return Status(Reason::kIncompatible,
                  fmt::format("nbytes is {}, but shape [{}] of {} has {}", info.nbytes,
                              fmt::join(info.shape, ", "), info.dtype, bytes));
  }
  return {};
}

Status check_producer_address(std::string_view address) {
  if (address.size() <= kMaxAddressBytes && address.starts_with(kTcpScheme) &&
      is_plain_text(address) && address.find_first_of("\"\\ ") == std::string_view::npos) {
    auto endpoint = parse_endpoint(address.substr(kTcpScheme.size()));
    if (endpoint.ok() && endpoint->port != 0 && !endpoint->wildcard()) return {};
  }
  return bad_entry(
      fmt::format("producer_zmq \"{}\" is not tcp://HOST:PORT with a host that can be connected to",
                  to_plain_text(address, 64)));
}

}  // namespace stagelink::encoder_cache
