#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/convert/convert.h"
#include "bindings/convert/status_error.h"
#include "bindings/kv/kv_objects.h"
#include "bindings/serializer/payload_path.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

[[noreturn]] void refuse_layer(size_t at, std::string_view why, Reason reason) {
  raise(Status(reason, fmt::format("layer {}: {}", at, why)));
}

kv::StridedTensor tensor_of(nb::handle object, size_t at) {
  kv::StridedTensor out;
  uint64_t address = 0;
  std::string dtype;
  const bool torch = nb::hasattr(object, "data_ptr");
  if (torch) {
    const auto device = nb::cast<std::string>(object.attr("device").attr("type"));
    if (device != "cpu") refuse_layer(at, "a tensor on device " + device, Reason::kUnsupported);
    address = nb::cast<uint64_t>(object.attr("data_ptr")());
    dtype = text_of(object.attr("dtype"));
    if (dtype.starts_with("torch.")) dtype.erase(0, 6);
    out.strides = nb::cast<std::vector<int64_t>>(object.attr("stride")());
  } else if (nb::hasattr(object, "__array_interface__")) {
    address = nb::cast<uint64_t>(object.attr("__array_interface__")["data"][0]);
    dtype = nb::cast<std::string>(object.attr("dtype").attr("name"));
    out.strides = nb::cast<std::vector<int64_t>>(object.attr("strides"));
  } else {
    refuse_layer(
        at,
        fmt::format("expected a tensor, a pair of tensors or None, found {}", type_name_of(object)),
        Reason::kInvalidArgument);
  }
  out.shape = nb::cast<std::vector<int64_t>>(nb::tuple(object.attr("shape")));
  out.dtype = kv::find_kv_dtype(dtype);
  if (out.dtype == nullptr) {
    refuse_layer(at, "Unsupported dtype in KV payload: " + dtype, Reason::kUnsupported);
  }
  if (torch) {
    for (int64_t& stride : out.strides) stride *= int64_t{out.dtype->bytes};
  }
  out.first = reinterpret_cast<const std::byte*>(address);
  return out;
}

Result<kv::LayerPlanes> planes_of_object(nb::handle object, size_t at,
                                         const kv::LayerReading& reading) {
  if (object.is_none()) return kv::LayerPlanes{};
  if (!nb::isinstance<nb::tuple>(object) && !nb::isinstance<nb::list>(object)) {
    return kv::planes_of(tensor_of(object, at), reading);
  }
  if (nb::len(object) != 2) {
    refuse_layer(at, fmt::format("{} tensors, expected keys and values", nb::len(object)),
                 Reason::kInvalidArgument);
  }
  return kv::planes_of(tensor_of(object[0], at), tensor_of(object[1], at), reading);
}

}  // namespace

KvLayers to_kv_layers(nb::handle layers, const kv::LayerReading& reading) {
  KvLayers out;
  for (const nb::handle object : layers) {
    const size_t at = out.planes.size();
    auto planes = planes_of_object(object, at, reading);
    if (!planes.ok()) refuse_layer(at, planes.status().message(), planes.status().reason());
    out.planes.push_back(*std::move(planes));
    out.owners.push_back(nb::borrow(object));
  }
  return out;
}

kv::HeadShare to_share(nb::handle value) {
  const auto numbers = nb::cast<std::vector<uint32_t>>(value);
  if (numbers.size() != 3 || numbers[2] == 0 || numbers[0] > numbers[2] ||
      numbers[1] > numbers[2] - numbers[0]) {
    raise(Status(Reason::kInvalidArgument,
                 fmt::format("a share of heads is (first, count, of), found ({})",
                             fmt::join(numbers, ", "))));
  }
  return {numbers[0], numbers[1], numbers[2]};
}

nb::list routes_list(const std::vector<kv::RankRoute>& routes) {
  const auto share = [](const kv::HeadShare& s) { return nb::make_tuple(s.first, s.count, s.of); };
  nb::list out;
  for (const kv::RankRoute& route : routes) {
    out.append(nb::make_tuple(route.rank, share(route.ours), share(route.theirs)));
  }
  return out;
}

std::vector<kv::RankRoute> to_routes(nb::handle value) {
  std::vector<kv::RankRoute> out;
  for (const nb::handle one : value) {
    out.push_back({nb::cast<uint32_t>(one[0]), to_share(one[1]), to_share(one[2])});
  }
  return out;
}

nb::list tensors_list(std::span<const kv::PayloadTensor> tensors) {
  nb::list out;
  for (const kv::PayloadTensor& tensor : tensors) {
    out.append(nb::make_tuple(tensor.is_value, tensor.layer, to_str(tensor.dtype->name),
                              nb::tuple(nb::cast(tensor.shape)), tensor.offset, tensor.bytes));
  }
  return out;
}

}  // namespace stagelink::bindings
