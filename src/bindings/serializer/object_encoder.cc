#include "bindings/serializer/object_encoder.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "bindings/convert/convert.h"
#include "bindings/convert/status_error.h"
#include "connector/serializer/payload.h"

namespace nb = nanobind;

namespace stagelink::bindings {

using serializer::ListKind;
using serializer::Wire;

namespace {

constexpr size_t kPathBytes = 400;  // Of a place within an object, in a message.

std::string full_name_of(nb::handle type) {
  std::string module;
  nb::object name = nb::getattr(type, "__module__", nb::none());
  if (nb::try_cast(name, module) && module != "builtins") module += ".";
  if (module == "builtins") module.clear();
  return module + text_of(nb::getattr(type, "__qualname__", nb::str("?")));
}

}  // namespace

std::string PayloadPath::text() const {
  std::string out = "$";
  for (const Node& node : steps_) {
    if (out.size() > kPathBytes) return out + "...";
    if (!node.key.is_valid()) {
      out += fmt::format("[{}]", node.index);
    } else if (node.field) {
      out += "." + text_of(node.key);
    } else {
      out += fmt::format("[{}]", shown_of(node.key, 80));
    }
  }
  return out;
}

ObjectEncoder::ObjectEncoder(Wire wire, bool sum, nb::handle reduce)
    : wire_(wire), builder_(wire, sum), reduce_(reduce) {}

KeptPlan ObjectEncoder::encode(nb::handle object) && {
  value(object);
  kept_.plan = unwrap(std::move(builder_).finish());
  return std::move(kept_);
}

void ObjectEncoder::check(const Status& status) const {
  if (status.ok()) return;
  raise(Status(status.reason(), fmt::format("{}, at {}", status.message(), path_.text())));
}

void ObjectEncoder::refuse(nb::handle object, const std::string& why) const {
  const std::string message =
      fmt::format("cannot encode {} at {}: {}", full_name_of(object.type()), path_.text(), why);
  throw nb::type_error(message.c_str());
}

void ObjectEncoder::value(nb::handle object) {
  if (plain_value(object)) return;
  if (path_.depth() >= serializer::kMaxDepth) {
    raise(Status(Reason::kTooLarge, fmt::format("nested deeper than {}: does it hold itself?",
                                                serializer::kMaxDepth)));
  }
  container_or_other(object);
}

bool ObjectEncoder::plain_value(nb::handle object) {
  PyObject* const raw = object.ptr();
  if (raw == Py_None) {
    builder_.nil();
  } else if (raw == Py_True || raw == Py_False) {
    builder_.boolean(raw == Py_True);
  } else if (PyLong_CheckExact(raw)) {
    integer(object);
  } else if (PyFloat_CheckExact(raw)) {
    builder_.real(PyFloat_AS_DOUBLE(raw));
  } else if (PyUnicode_CheckExact(raw)) {
    text(object);
  } else if (PyBytes_CheckExact(raw)) {
    bytes(object);
  } else {
    return false;
  }
  return true;
}

void ObjectEncoder::container_or_other(nb::handle object) {
  PyObject* const raw = object.ptr();
  if (PyDict_Check(raw)) return dict(object);
  if (PyList_Check(raw)) return sequence(object, ListKind::kList);
  if (PyTuple_Check(raw)) return sequence(object, ListKind::kTuple);
  if (PySet_Check(raw)) return set(object, ListKind::kSet);
  if (PyFrozenSet_Check(raw)) return set(object, ListKind::kFrozenset);
  if (PyByteArray_CheckExact(raw) || PyMemoryView_Check(raw)) return buffer(object);
  switch (kind_of(object.type())) {
    case Kind::kTensor: return tensor(object);
    case Kind::kNdarray: return ndarray(object);
    case Kind::kImage: return image(object);
    case Kind::kStruct: return structure(object);
    case Kind::kDataclass: return dataclass(object);
    case Kind::kAttrs: return attrs(object);
    case Kind::kSlice: {
      const nb::object parts =
          nb::make_tuple(object.attr("start"), object.attr("stop"), object.attr("step"));
      return sequence(parts, ListKind::kList);
    }
    case Kind::kOther: return other(object);
  }
}

void ObjectEncoder::integer(nb::handle object) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow == 0) return builder_.integer(value);
  const unsigned long long large = overflow > 0 ? PyLong_AsUnsignedLongLong(object.ptr()) : 0;
  if (overflow < 0 || PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    PyErr_Format(PyExc_OverflowError, "an integer beyond 64 bits at %s", path_.text().c_str());
    throw nb::python_error();
  }
  builder_.unsigned_integer(large);
}

void ObjectEncoder::text(nb::handle object) {
  Py_ssize_t size = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (utf8 == nullptr) throw nb::python_error();
  const std::string_view view(utf8, static_cast<size_t>(size));
  check(builder_.text(view));
  if (view.size() >= serializer::kInsertBytes) kept_.owners.push_back(nb::borrow(object));
}

void ObjectEncoder::bytes(nb::handle object) {
  const auto size = static_cast<size_t>(PyBytes_GET_SIZE(object.ptr()));
  check(builder_.bytes(std::as_bytes(std::span(PyBytes_AS_STRING(object.ptr()), size))));
  if (size >= serializer::kInsertBytes) kept_.owners.push_back(nb::borrow(object));
}

void ObjectEncoder::buffer(nb::handle object) {
  if (PyMemoryView_Check(object.ptr()) &&
      PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(object.ptr()), 'C') == 0) {
    refuse(object, "it is not one run of bytes");
  }
  kept_.buffers.push_back(std::make_unique<BytesView>(object, "object"));
  check(builder_.bytes(kept_.buffers.back()->bytes()));
}

void ObjectEncoder::sequence(nb::handle object, ListKind kind) {
  PyObject* const raw = object.ptr();
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(raw);
  check(builder_.list(static_cast<uint64_t>(count), kind));
  for (Py_ssize_t i = 0; i < count; ++i) {
    // Encoding a value may run Python, and with it anything.
    if (i >= PySequence_Fast_GET_SIZE(raw)) refuse(object, "it has changed while it was encoded");
    const nb::object entry = nb::borrow(PySequence_Fast_GET_ITEM(raw, i));
    const PayloadPath::Step step(path_, i);
    value(entry);
  }
  if (count != PySequence_Fast_GET_SIZE(raw)) refuse(object, "it has changed while it was encoded");
}

void ObjectEncoder::set(nb::handle object, ListKind kind) {
  const nb::object list = nb::steal(PySequence_List(object.ptr()));
  if (!list.is_valid()) throw nb::python_error();
  sequence(list, kind);
}

void ObjectEncoder::begin_map(uint64_t count, uint64_t widest) {
  if (in_key_) {
    throw nb::type_error(
        fmt::format("a key of a map that could not be one when it is read, at {}", path_.text())
            .c_str());
  }
  check(builder_.map(count, widest));
}

void ObjectEncoder::dict(nb::handle object) {
  PyObject* const raw = object.ptr();
  const Py_ssize_t count = PyDict_Size(raw);
  begin_map(static_cast<uint64_t>(count), static_cast<uint64_t>(count));
  PyObject* name = nullptr;
  PyObject* entry = nullptr;
  Py_ssize_t at = 0;
  Py_ssize_t met = 0;
  while (PyDict_Next(raw, &at, &name, &entry) != 0) {
    const nb::object held_name = nb::borrow(name);
    const nb::object held_entry = nb::borrow(entry);
    const PayloadPath::Step step(path_, held_name);
    key(held_name);
    value(held_entry);
    ++met;
    if (PyDict_Size(raw) != count) break;
  }
  if (met != count || PyDict_Size(raw) != count)
    refuse(object, "it has changed while it was encoded");
}

void ObjectEncoder::key(nb::handle object) {
  if (PyUnicode_Check(object.ptr())) return text(object);
  const bool outer = std::exchange(in_key_, true);
  value(object);
  in_key_ = outer;
}

}  // namespace stagelink::bindings
