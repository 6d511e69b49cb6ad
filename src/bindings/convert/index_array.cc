#include "bindings/convert/index_array.h"

#include <concepts>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "bindings/convert/convert.h"
#include "bindings/convert/status_error.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

constexpr size_t kScalar = ~size_t{0};  // The index of a value that stands alone.

// The integer format of a buffer without its byte-order mark; 0 if it is not one native integer.
char integer_format(const Py_buffer& view) {
  std::string_view format = view.format == nullptr ? "" : view.format;
  if (format.starts_with('<') || format.starts_with('=') || format.starts_with('@')) {
    format.remove_prefix(1);
  }
  if (format.size() != 1) return 0;
  return std::string_view("bBhHiIlLqQnN").find(format[0]) == std::string_view::npos ? '\0'
                                                                                    : format[0];
}

bool is_signed_format(char format) { return format >= 'a'; }

}  // namespace

template <typename T>
IndexArray<T>::IndexArray(nb::handle object, const char* name) : name_(name) {
  PyObject* o = object.ptr();
  if (PyLong_CheckExact(o) != 0) {
    take_int(o);
  } else if (!take_buffer(o) && !take_tensor(object)) {
    PySequence_Check(o) == 0 && PyIndex_Check(o) != 0 ? take_int(o) : take_sequence(o);
  }
}

template <typename T>
IndexArray<T>::~IndexArray() {
  if (view_.has_value()) PyBuffer_Release(&*view_);
}

template <typename T>
void IndexArray<T>::repeat(size_t count) {
  copied_.assign(count, scalar_);
  values_ = copied_;
}

template <typename T>
void IndexArray<T>::take_int(PyObject* object) {
  scalar_ = parse(object, kScalar);
  values_ = std::span<const T>(&scalar_, 1);
  is_scalar_ = true;
}

template <typename T>
T IndexArray<T>::parse(PyObject* item, size_t index) const {
  const nb::object number = nb::steal(PyNumber_Index(item));
  if (!number.is_valid()) {
    PyErr_Clear();
    refuse(fmt::format("{} = {} is not an integer", place(index), shown_of(item)));
  }
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  const bool overflow = value == ~0ULL && PyErr_Occurred() != nullptr;
  if (overflow) PyErr_Clear();
  if (overflow || value > std::numeric_limits<T>::max()) {
    refuse(fmt::format("{} = {} is not in 0..{}", place(index), shown_of(item),
                       std::numeric_limits<T>::max()));
  }
  return static_cast<T>(value);
}

template <typename T>
std::string IndexArray<T>::place(size_t index) const {
  return index == kScalar ? std::string(name_) : fmt::format("{}[{}]", name_, index);
}

// Whether the items can be used where they are.
template <typename T>
bool IndexArray<T>::fits_in_place(const Py_buffer& view) const {
  return view.itemsize == sizeof(T) && view.strides[0] == view.itemsize &&
         reinterpret_cast<uintptr_t>(view.buf) % alignof(T) == 0;
}

template <typename T>
bool IndexArray<T>::take_buffer(PyObject* object) {
  if (PyObject_CheckBuffer(object) == 0) return false;
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    throw nb::python_error();
  }
  view_ = view;  // Released with this object, on every way out but a refusal in the constructor.
  struct Release {
    std::optional<Py_buffer>& view;
    bool armed = true;
    ~Release() {
      if (!armed) return;
      PyBuffer_Release(&*view);
      view.reset();
    }
  } release{view_};

  const char format = integer_format(view);
  if (format == 0 || PyBytes_Check(object) || PyByteArray_Check(object)) {
    refuse(fmt::format("{} must hold integers, not items of format '{}'", name_,
                       view.format == nullptr ? "B" : view.format));
  }
  if (view.ndim == 0) {
    take_int(object);
    return true;
  }
  if (view.ndim != 1) refuse(fmt::format("{} must have one dimension, not {}", name_, view.ndim));
  switch (is_signed_format(format) ? -view.itemsize : view.itemsize) {
    case 1: take_items<uint8_t>(view); break;
    case 2: take_items<uint16_t>(view); break;
    case 4: take_items<uint32_t>(view); break;
    case 8: take_items<uint64_t>(view); break;
    case -1: take_items<int8_t>(view); break;
    case -2: take_items<int16_t>(view); break;
    case -4: take_items<int32_t>(view); break;
    case -8: take_items<int64_t>(view); break;
    default: refuse(fmt::format("{} holds integers of {} bytes", name_, view.itemsize));
  }
  release.armed = !fits_in_place(view);
  return true;
}

// A torch tensor has no buffer protocol, but gives a NumPy array of the same memory.
template <typename T>
bool IndexArray<T>::take_tensor(nb::handle object) {
  if (!nb::hasattr(object, "data_ptr") || !nb::hasattr(object, "numpy")) return false;
  const nb::object array = object.attr("numpy")();
  return take_buffer(array.ptr());
}

// Checks every item, and copies those that cannot be used where they are.
template <typename T>
template <typename Item>
void IndexArray<T>::take_items(const Py_buffer& view) {
  const auto count = static_cast<size_t>(view.shape[0]);
  const char* data = static_cast<const char*>(view.buf);
  const bool in_place = fits_in_place(view);
  if (in_place && std::unsigned_integral<Item>) {
    values_ = std::span<const T>(reinterpret_cast<const T*>(data), count);
    return;
  }
  if (!in_place) copied_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    Item item;
    std::memcpy(&item, data + static_cast<ptrdiff_t>(i) * view.strides[0], sizeof item);
    if (!std::in_range<T>(item)) {
      refuse(fmt::format("{}[{}] = {} is not in 0..{}", name_, i, item,
                         std::numeric_limits<T>::max()));
    }
    if (!in_place) copied_.push_back(static_cast<T>(item));
  }
  values_ = in_place ? std::span<const T>(reinterpret_cast<const T*>(data), count)
                     : std::span<const T>(copied_);
}

template <typename T>
void IndexArray<T>::take_sequence(PyObject* object) {
  if (PySequence_Check(object) == 0 || PyUnicode_Check(object)) {
    refuse(fmt::format("{} = {} ({}): expected an int, an array of integers or a sequence of int",
                       name_, shown_of(object), Py_TYPE(object)->tp_name));
  }
  const nb::object items = nb::steal(PySequence_Fast(object, name_));
  if (!items.is_valid()) throw nb::python_error();
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  copied_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    copied_.push_back(parse(PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i)), i));
  }
  values_ = copied_;
}

template <typename T>
void IndexArray<T>::refuse(const std::string& what) const {
  raise(Status(Reason::kInvalidArgument, what));
}

uint64_t index_value(nb::handle object, const char* name) {
  const IndexArray<uint64_t> value(object, name);
  if (!value.is_scalar()) {
    raise(Status(Reason::kInvalidArgument, fmt::format("{} must be an int", name)));
  }
  return value.values().front();
}

template class IndexArray<uint64_t>;
template class IndexArray<uint32_t>;

}  // namespace stagelink::bindings
