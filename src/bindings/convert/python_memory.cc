#include "bindings/convert/python_memory.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/convert/convert.h"
#include "bindings/convert/status_error.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

// Strides in bytes.
struct Layout {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t item_bytes = 0;
};

[[noreturn]] void refuse(Reason reason, std::string message) {
  raise(Status(reason, std::move(message)));
}

// True if the strides are those of a dense array whose fastest axis is the last (C) or the first
// (Fortran). Axes of length 1 may have any stride.
bool is_dense(const Layout& layout, bool fortran) {
  int64_t expected = layout.item_bytes;
  const size_t n = layout.shape.size();
  for (size_t i = 0; i < n; ++i) {
    const size_t axis = fortran ? i : n - 1 - i;
    if (layout.shape[axis] == 0) return true;
    if (layout.shape[axis] == 1) continue;
    if (layout.strides[axis] != expected) return false;
    expected *= layout.shape[axis];
  }
  return true;
}

size_t dense_bytes(const Layout& layout, nb::handle object) {
  if (!is_dense(layout, false) && !is_dense(layout, true)) {
    refuse(Reason::kNotContiguous,
           fmt::format("{} with shape ({}) and strides ({}) bytes is not one block of memory; "
                       "register the array it is a view of, or a contiguous copy",
                       type_name_of(object), fmt::join(layout.shape, ", "),
                       fmt::join(layout.strides, ", ")));
  }
  int64_t bytes = layout.item_bytes;
  for (const int64_t extent : layout.shape) bytes *= extent;
  return static_cast<size_t>(bytes);
}

Layout c_order(std::vector<int64_t> shape, int64_t item_bytes) {
  Layout layout{std::move(shape), {}, item_bytes};
  layout.strides.resize(layout.shape.size());
  int64_t stride = item_bytes;
  for (size_t i = layout.shape.size(); i-- > 0;) {
    layout.strides[i] = stride;
    stride *= layout.shape[i];
  }
  return layout;
}

[[noreturn]] void refuse_device(nb::handle object, std::string_view device) {
  refuse(Reason::kUnsupported,
         fmt::format("{} lies on device {}; only host memory can be registered",
                     type_name_of(object), device));
}

// Only what the objects of CUDA libraries and of torch say of themselves. NumPy's `device` is
// "cpu".
void require_host_memory(nb::handle object) {
  if (nb::hasattr(object, "device")) {
    const nb::object given = object.attr("device");  // A str(attribute) would be the attribute.
    const auto device = nb::cast<std::string>(nb::str(nb::handle(given)));
    if (!device.starts_with("cpu")) refuse_device(object, device);
  }
  if (nb::hasattr(object, "__cuda_array_interface__")) refuse_device(object, "cuda");
}

// torch conjugates and negates complex tensors when they are read, not where they lie.
void require_plain_values(nb::handle tensor) {
  for (const char* const flag : {"is_conj", "is_neg"}) {
    if (!nb::hasattr(tensor, flag) || !nb::cast<bool>(tensor.attr(flag)())) continue;
    refuse(Reason::kUnsupported,
           fmt::format("{}: its values are not those in memory ({}() is true); pass "
                       "tensor.resolve_conj().resolve_neg()",
                       type_name_of(tensor), flag));
  }
}

}  // namespace

PythonMemory PythonMemory::of(nb::handle object) {
  if (nb::isinstance<nb::tuple>(object)) return of_pair(nb::borrow<nb::tuple>(object));
  require_host_memory(object);
  if (nb::hasattr(object, "data_ptr") && nb::hasattr(object, "element_size")) {
    return of_tensor(object);
  }
  // Before the buffer protocol, which has no name for bfloat16 and the like.
  if (nb::hasattr(object, "__array_interface__")) return of_interface(object);
  if (PyObject_CheckBuffer(object.ptr()) != 0) return of_buffer(object);
  if (nb::hasattr(object, "__dlpack__")) return of_dlpack(object);
  refuse(Reason::kInvalidArgument,
         fmt::format("cannot register {}: expected (address, nbytes), an object with the buffer "
                     "protocol, or a tensor",
                     type_name_of(object)));
}

PythonMemory PythonMemory::of_pair(nb::tuple pair) {
  uint64_t address = 0;
  uint64_t bytes = 0;
  if (pair.size() != 2 || !nb::try_cast(pair[0], address) || !nb::try_cast(pair[1], bytes)) {
    refuse(Reason::kInvalidArgument,
           fmt::format("expected (address, nbytes), two integers of 64 bits, not {}",
                       nb::cast<std::string>(nb::repr(pair))));
  }
  PythonMemory memory;
  memory.address_ = reinterpret_cast<void*>(address);
  memory.bytes_ = bytes;
  return memory;
}

PythonMemory PythonMemory::of_buffer(nb::handle object) {
  PythonMemory memory;
  memory.buffer_.emplace();
  Py_buffer& view = *memory.buffer_;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDES) != 0) {
    memory.buffer_.reset();
    throw nb::python_error();
  }
  Layout layout;
  layout.item_bytes = view.itemsize;
  layout.shape.assign(view.shape, view.shape + view.ndim);
  layout.strides.assign(view.strides, view.strides + view.ndim);
  memory.bytes_ = dense_bytes(layout, object);
  memory.address_ = view.buf;
  memory.read_only_ = view.readonly != 0;
  return memory;
}

PythonMemory PythonMemory::of_tensor(nb::handle object) {
  require_plain_values(object);
  Layout layout;
  layout.item_bytes = nb::cast<int64_t>(object.attr("element_size")());
  layout.shape = nb::cast<std::vector<int64_t>>(object.attr("shape"));
  if (nb::hasattr(object, "stride")) {
    layout.strides = nb::cast<std::vector<int64_t>>(object.attr("stride")());
    for (int64_t& stride : layout.strides) stride *= layout.item_bytes;
  } else if (nb::cast<bool>(object.attr("is_contiguous")())) {
    layout = c_order(std::move(layout.shape), layout.item_bytes);
  } else {
    refuse(Reason::kNotContiguous,
           fmt::format("{} with shape ({}) is not contiguous", type_name_of(object),
                       fmt::join(layout.shape, ", ")));
  }
  PythonMemory memory;
  memory.bytes_ = dense_bytes(layout, object);
  memory.address_ = reinterpret_cast<void*>(nb::cast<uint64_t>(object.attr("data_ptr")()));
  memory.owner_ = nb::borrow(object);
  return memory;
}

PythonMemory PythonMemory::of_interface(nb::handle object) {
  const nb::object interface = object.attr("__array_interface__");
  const auto type = nb::cast<std::string>(interface["typestr"]);
  if (type.size() > 1 && type[1] == 'O') {
    refuse(Reason::kUnsupported, "an array of Python objects has no bytes to register");
  }
  const nb::object data = interface.attr("get")("data");
  if (!nb::isinstance<nb::tuple>(data)) {
    refuse(Reason::kUnsupported,
           fmt::format("{} does not tell the address of its bytes", type_name_of(object)));
  }
  const nb::object strides = interface.attr("get")("strides");
  Layout layout =
      c_order(nb::cast<std::vector<int64_t>>(interface["shape"]), std::stoll(type.substr(2)));
  if (!strides.is_none()) layout.strides = nb::cast<std::vector<int64_t>>(strides);

  PythonMemory memory;
  memory.bytes_ = dense_bytes(layout, object);
  memory.address_ = reinterpret_cast<void*>(nb::cast<uint64_t>(data[0]));
  memory.read_only_ = nb::cast<bool>(data[1]);
  memory.owner_ = nb::borrow(object);
  return memory;
}

PythonMemory PythonMemory::of_dlpack(nb::handle object) {
  constexpr int kHostDevice = 1;
  const int device = nb::cast<int>(object.attr("__dlpack_device__")()[0]);
  if (device != kHostDevice) refuse_device(object, fmt::format("{} (DLPack)", device));
  const auto array = nb::cast<nb::ndarray<nb::ro>>(object);
  Layout layout;
  layout.item_bytes = static_cast<int64_t>(array.itemsize());
  for (size_t i = 0; i < array.ndim(); ++i) {
    layout.shape.push_back(static_cast<int64_t>(array.shape(i)));
    layout.strides.push_back(array.stride(i) * layout.item_bytes);
  }
  PythonMemory memory;
  memory.bytes_ = dense_bytes(layout, object);
  memory.address_ = const_cast<void*>(static_cast<const void*>(array.data()));
  memory.owner_ = nb::borrow(object);
  return memory;
}

PythonMemory::PythonMemory(PythonMemory&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      read_only_(other.read_only_),
      buffer_(std::exchange(other.buffer_, std::nullopt)),
      owner_(std::move(other.owner_)) {}

PythonMemory& PythonMemory::operator=(PythonMemory&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(read_only_, other.read_only_);
  std::swap(buffer_, other.buffer_);
  std::swap(owner_, other.owner_);
  return *this;
}

PythonMemory::~PythonMemory() {
  if (buffer_.has_value()) PyBuffer_Release(&*buffer_);
}

}  // namespace stagelink::bindings
