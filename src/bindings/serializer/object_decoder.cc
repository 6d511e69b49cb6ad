#include "bindings/serializer/object_decoder.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/serializer/fresh_memory.h"
#include "bindings/serializer/payload_path.h"
#include "connector/serializer/dtype.h"

namespace nb = nanobind;

namespace stagelink::bindings {

using serializer::ArrayKind;
using serializer::ArrayView;
using serializer::Dtype;
using serializer::ListKind;

namespace {

constexpr size_t kUnlockedBytes = size_t{1} << 20;  // Copies from here on let other threads run.

void copy_unlocked(void* to, std::span<const std::byte> from) {
  expect_filling(to, from.size());
  if (from.size() < kUnlockedBytes) {
    std::memcpy(to, from.data(), from.size());
  } else {
    without_gil([&] { return std::memcpy(to, from.data(), from.size()); });
  }
}

nb::tuple to_tuple(std::span<const uint64_t> shape) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (size_t i = 0; i < shape.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i),
                     PyLong_FromUnsignedLongLong(shape[i]));
  }
  return nb::borrow<nb::tuple>(tuple);
}

// For the types that DLPack and every torch know. Others go by bytes.
bool dlpack_type(const Dtype& dtype, nb::dlpack::dtype& out) {
  using Code = nb::dlpack::dtype_code;
  const std::string_view name = dtype.name;
  Code code = Code::Int;
  if (name.starts_with("float8") || name.starts_with("float4") || name.starts_with("float6") ||
      name == "complex32" || name.ends_with("int4") || name.ends_with("int2")) {
    return false;
  }
  if (name.starts_with("uint")) code = Code::UInt;
  if (name.starts_with("float")) code = Code::Float;
  if (name.starts_with("complex")) code = Code::Complex;
  if (name.starts_with("bfloat")) code = Code::Bfloat;
  if (name == "bool") code = Code::Bool;
  out.code = static_cast<uint8_t>(code);
  out.bits = static_cast<uint8_t>(dtype.bytes * 8);
  out.lanes = 1;
  return true;
}

nb::object numpy_type(std::string_view name) {
  const nb::object numpy = nb::module_::import_("numpy");
  const Dtype* const known = serializer::find_dtype(name);
  if (known == nullptr) return numpy.attr("dtype")(to_str(name));
  if (!known->numpy.empty()) return numpy.attr("dtype")(to_str(known->numpy));
  const nb::object extended = nb::module_::import_("ml_dtypes");
  const std::string attribute(name);
  if (!nb::hasattr(extended, attribute.c_str())) {
    PyErr_Format(PyExc_ImportError, "elements of type %s need torch", attribute.c_str());
    throw nb::python_error();
  }
  return numpy.attr("dtype")(extended.attr(attribute.c_str()));
}

}  // namespace

ObjectDecoder::ObjectDecoder(std::span<const std::byte> frame, nb::object owner, bool copy,
                             nb::handle revive)
    : frame_(frame), owner_(std::move(owner)), copy_(copy), revive_(revive) {}

nb::object ObjectDecoder::result(const Status& status) {
  if (raised_) throw nb::python_error();
  bindings::check(failure_);
  bindings::check(status);
  return std::move(result_);
}

bool ObjectDecoder::fail(std::string message) {
  failure_ = Status(Reason::kFrame, "payload: " + std::move(message));
  return false;
}

bool ObjectDecoder::put(PyObject* value) {
  if (value == nullptr) {
    raised_ = true;
    return false;
  }
  return put(nb::steal(value));
}

bool ObjectDecoder::put(nb::object value) {
  if (open_.empty()) {
    result_ = std::move(value);
    return true;
  }
  Open& open = open_.back();
  if (!open.map) {
    raised_ = PyList_Append(open.container.ptr(), value.ptr()) != 0;
    return !raised_;
  }
  if (!open.key.is_valid()) {
    open.key = std::move(value);
    return true;
  }
  const nb::object key = std::move(open.key);
  open.key = nb::object();
  if (PyDict_SetItem(open.container.ptr(), key.ptr(), value.ptr()) == 0) return true;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) {
    raised_ = true;
    return false;
  }
  PyErr_Clear();
  return fail("a map has a key that cannot be one");
}

template <typename Make>
bool ObjectDecoder::make(Make make_object) {
  std::string why;
  try {
    return put(make_object());
  } catch (nb::python_error& error) {
    if (error.matches(PyExc_ImportError) || error.matches(PyExc_MemoryError) ||
        !error.matches(PyExc_Exception)) {
      error.restore();
      raised_ = true;
      return false;
    }
    why = text_of(error.value());
  }
  return fail(why);
}

bool ObjectDecoder::nil() { return put(nb::none()); }
bool ObjectDecoder::boolean(bool value) { return put(PyBool_FromLong(value ? 1 : 0)); }
bool ObjectDecoder::integer(int64_t value) { return put(PyLong_FromLongLong(value)); }
bool ObjectDecoder::unsigned_integer(uint64_t value) {
  return put(PyLong_FromUnsignedLongLong(value));
}
bool ObjectDecoder::real(double value) { return put(PyFloat_FromDouble(value)); }

bool ObjectDecoder::text(std::string_view value) {
  PyObject* const made =
      PyUnicode_DecodeUTF8(value.data(), static_cast<Py_ssize_t>(value.size()), nullptr);
  if (made != nullptr || PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) == 0) return put(made);
  PyErr_Clear();
  return fail("a text that is not UTF-8");
}

bool ObjectDecoder::bytes(std::span<const std::byte> value) {
  const auto size = static_cast<Py_ssize_t>(value.size());
  PyObject* const made = PyBytes_FromStringAndSize(nullptr, size);
  if (made != nullptr) copy_unlocked(PyBytes_AS_STRING(made), value);
  return put(made);
}

bool ObjectDecoder::time(int64_t seconds, uint32_t nanoseconds) {
  return make([&] {
    const nb::object module = nb::module_::import_("datetime");
    const nb::object utc = module.attr("timezone").attr("utc");
    const nb::object start = module.attr("datetime")(1970, 1, 1, nb::arg("tzinfo") = utc);
    return nb::object(start + module.attr("timedelta")(0, seconds, nanoseconds / 1000));
  });
}

bool ObjectDecoder::begin_list(uint64_t, ListKind kind) {
  PyObject* const list = PyList_New(0);
  if (list == nullptr) return put(list);
  open_.push_back({nb::steal(list), kind, false, {}});
  return true;
}

bool ObjectDecoder::begin_map(uint64_t) {
  PyObject* const dict = PyDict_New();
  if (dict == nullptr) return put(dict);
  open_.push_back({nb::steal(dict), ListKind::kList, true, {}});
  return true;
}

bool ObjectDecoder::end() {
  const Open open = std::move(open_.back());
  open_.pop_back();
  if (open.map && revive_.is_none()) return put(open.container);
  if (!open.map && open.kind == ListKind::kList) return put(open.container);
  // What `revive` raises is its own.
  if (open.map) {
    try {
      return put(revive_(open.container));
    } catch (nb::python_error& error) {
      error.restore();
      raised_ = true;
      return false;
    }
  }
  return make([&] { return finished(open); });
}

nb::object ObjectDecoder::finished(const Open& open) const {
  PyObject* made = nullptr;
  if (open.kind == ListKind::kTuple) made = PyList_AsTuple(open.container.ptr());
  if (open.kind == ListKind::kSet) made = PySet_New(open.container.ptr());
  if (open.kind == ListKind::kFrozenset) made = PyFrozenSet_New(open.container.ptr());
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

bool ObjectDecoder::array(const ArrayView& view) {
  return make([&] {
    if (view.kind == ArrayKind::kTensor) return make_tensor(view);
    if (view.kind == ArrayKind::kImage) return make_image(view);
    return make_array(view);
  });
}

size_t ObjectDecoder::offset_of(const ArrayView& view) const noexcept {
  return static_cast<size_t>(view.data.data() - frame_.data());
}

nb::object ObjectDecoder::make_array(const ArrayView& view) const {
  const nb::object numpy = nb::module_::import_("numpy");
  const nb::object type = numpy_type(view.dtype);
  const nb::tuple shape = to_tuple(view.shape);
  if (view.data.empty()) return numpy.attr("empty")(shape, type);
  // Not ndarray(buffer=...), which does not keep the buffer's owner from giving the memory up.
  const auto count = view.data.size() / nb::cast<size_t>(type.attr("itemsize"));
  const nb::object flat = numpy.attr("frombuffer")(owner_, type, count, offset_of(view));
  const nb::object array = flat.attr("reshape")(shape);
  return copy_ ? nb::object(array.attr("copy")()) : array;
}

nb::object ObjectDecoder::make_tensor(const ArrayView& view) {
  if (!torch_.is_valid()) {
    try {
      torch_ = nb::module_::import_("torch");
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_ModuleNotFoundError)) throw;
      torch_ = nb::none();
    }
  }
  if (torch_.is_none()) return make_array(view);
  const Dtype& dtype = *serializer::find_dtype(view.dtype);
  const nb::object type = torch_.attr(std::string(dtype.name).c_str());
  if (view.data.empty()) {
    return torch_.attr("empty")(to_tuple(view.shape), nb::arg("dtype") = type);
  }
  // torch's kernels for complex numbers crash where these are not aligned; no others do.
  const auto address = reinterpret_cast<uintptr_t>(view.data.data());
  const bool complex = view.dtype.starts_with("complex");
  if (copy_ || (complex && address % dtype.bytes != 0)) return copied_tensor(view, type);
  // DLPack knows no read-only memory, so the tensor looks writable. It is not meant to be.
  nb::dlpack::dtype code = nb::dtype<uint8_t>();
  const bool typed = dlpack_type(dtype, code);
  const size_t bytes = view.data.size();
  const std::vector<size_t> shape(view.shape.begin(), view.shape.end());
  const nb::ndarray<nb::pytorch> raw(const_cast<std::byte*>(view.data.data()),
                                     typed ? shape.size() : 1, typed ? shape.data() : &bytes,
                                     owner_, nullptr, code);
  const nb::object tensor = nb::cast(raw);
  if (typed) return tensor;
  return tensor.attr("view")(type).attr("view")(to_tuple(view.shape));
}

nb::object ObjectDecoder::copied_tensor(const ArrayView& view, nb::handle type) const {
  nb::object tensor = torch_.attr("empty")(to_tuple(view.shape), nb::arg("dtype") = type);
  void* const to = reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr("data_ptr")()));
  copy_unlocked(to, view.data);
  return tensor;
}

nb::object ObjectDecoder::make_image(const ArrayView& view) const {
  const nb::object image = nb::module_::import_("PIL.Image");
  const nb::object mode = to_str(view.mode);
  const nb::object raw_mode = view.mode == "1" ? to_str("1;8") : mode;
  const nb::tuple size = nb::make_tuple(view.shape[1], view.shape[0]);
  if (view.data.empty()) return image.attr("new")(mode, size);
  const nb::object data = owner_[nb::slice(
      nb::cast(offset_of(view)), nb::cast(offset_of(view) + view.data.size()), nb::none())];
  if (copy_) return image.attr("frombytes")(mode, size, data, "raw", raw_mode);
  return image.attr("frombuffer")(mode, size, data, "raw", raw_mode, 0, 1);
}

}  // namespace stagelink::bindings
