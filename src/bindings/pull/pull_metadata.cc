#include "bindings/pull/pull_metadata.h"

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/text.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/status_error.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

constexpr size_t kShownBytes = 80;

[[noreturn]] void refuse_metadata(const char* key, nb::handle value, const char* expected) {
  const std::string shown = shown_of(value, kShownBytes);
  raise(Status(Reason::kInvalidArgument, fmt::format("metadata: {} is {}, expected {}", key,
                                                     escape_control(shown), expected)));
}

// Leaves `out` alone where the key is missing or None.
template <typename T>
bool take(nb::handle metadata, const char* key, const char* expected, T& out) {
  const nb::object value = metadata.attr("get")(key);
  if (value.is_none()) return false;
  if (!nb::try_cast(value, out)) refuse_metadata(key, value, expected);
  return true;
}

}  // namespace

nb::dict metadata_dict(const pull::PullMetadata& metadata) {
  nb::dict out;
  out["source_host"] = metadata.source_host;
  out["source_port"] = metadata.source_port;
  out["source_rpc_port"] = metadata.source_rpc_port;
  out["source_addrs"] = metadata.source_addrs;
  out["lengths"] = metadata.lengths;
  out["data_size"] = metadata.data_size;
  out["is_fast_path"] = metadata.is_fast_path;
  out["generation"] = metadata.generation;
  return out;
}

std::optional<pull::PullMetadata> to_metadata(nb::handle metadata) {
  if (metadata.is_none()) return std::nullopt;
  if (!nb::hasattr(metadata, "get") || !nb::hasattr(metadata, "__len__")) {
    refuse_metadata("it", metadata, "a dictionary or None");
  }
  if (nb::len(metadata) == 0) return std::nullopt;
  constexpr const char* kPort = "a port, 1 to 65535";
  constexpr const char* kList = "a list of integers of 64 bits";
  constexpr const char* kNumber = "an integer of 64 bits";
  pull::PullMetadata out;
  const bool host = take(metadata, "source_host", "a text", out.source_host);
  const bool port = take(metadata, "source_port", kPort, out.source_port);
  if (!host || out.source_host.empty()) {
    refuse_metadata("source_host", nb::none(), "the sender's host");
  }
  if (!port || out.source_port == 0) refuse_metadata("source_port", nb::none(), kPort);
  take(metadata, "source_rpc_port", kPort, out.source_rpc_port);
  take(metadata, "source_addrs", kList, out.source_addrs);
  take(metadata, "lengths", kList, out.lengths);
  take(metadata, "data_size", kNumber, out.data_size);
  take(metadata, "is_fast_path", "true or false", out.is_fast_path);
  take(metadata, "generation", kNumber, out.generation);
  return out;
}

}  // namespace stagelink::bindings
