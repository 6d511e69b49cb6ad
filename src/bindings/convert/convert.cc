#include "bindings/convert/convert.h"

#include <cmath>
#include <string>

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "base/deadline.h"
#include "base/text.h"
#include "bindings/convert/index_array.h"
#include "bindings/convert/status_error.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

[[noreturn]] void refuse(const char* name, nb::handle value, std::string_view expected) {
  raise(Status(Reason::kInvalidArgument, fmt::format("{} = {}: expected {}", name,
                                                     escape_control(shown_of(value)), expected)));
}

[[noreturn]] void refuse(const char* name, const Status& status) {
  raise(Status(status.reason(), fmt::format("{}: {}", name, status.message())));
}

Duration from_seconds(double seconds) {
  const double longest = std::chrono::duration<double>(Deadline::kLongest).count();
  if (seconds >= longest) return Deadline::kLongest;
  return std::chrono::ceil<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

std::string to_text(nb::handle value, const char* name) {
  if (PyUnicode_Check(value.ptr()) == 0) refuse(name, value, "text");
  Py_ssize_t size = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (utf8 != nullptr) return {utf8, static_cast<size_t>(size)};
  PyErr_Clear();
  refuse(name, value, "text that has UTF-8, without halves of surrogate pairs");
}

uint64_t to_integer(nb::handle value, const char* name, uint64_t lowest, uint64_t highest) {
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (number.is_valid()) {
    const unsigned long long integer = PyLong_AsUnsignedLongLong(number.ptr());
    const bool overflow = integer == ~0ULL && PyErr_Occurred() != nullptr;
    if (!overflow && integer >= lowest && integer <= highest) return integer;
  }
  PyErr_Clear();
  refuse(name, value, fmt::format("an integer from {} to {}", lowest, highest));
}

bool to_flag(nb::handle value, const char* name) {
  if (PyBool_Check(value.ptr()) == 0) refuse(name, value, "true or false");
  return value.is(Py_True);
}

nb::list items_of(nb::handle value, const char* name) {
  nb::object items;
  if (PyUnicode_Check(value.ptr()) == 0 && PyObject_CheckBuffer(value.ptr()) == 0) {
    items = nb::steal(PySequence_List(value.ptr()));
  }
  if (!items.is_valid()) {
    PyErr_Clear();
    refuse(name, value, "a list");
  }
  return nb::borrow<nb::list>(items);
}

Duration to_duration(nb::handle value, const char* name) {
  if (PyUnicode_Check(value.ptr()) != 0) {
    const auto parsed = parse_duration(to_text(value, name));
    if (!parsed.ok()) refuse(name, parsed.status());
    return *parsed;
  }
  if (PyNumber_Check(value.ptr()) == 0) refuse(name, value, "seconds, or text such as \"500ms\"");
  const double seconds = PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse(name, value, "seconds, or text such as \"500ms\"");
  }
  if (!std::isfinite(seconds) || seconds < 0) {
    refuse(name, value, "a finite number of seconds, not negative");
  }
  return from_seconds(seconds);
}

std::optional<Duration> to_optional_duration(nb::handle value, const char* name) {
  if (value.is_none()) return std::nullopt;
  return to_duration(value, name);
}

Duration to_timeout(nb::handle value, const char* name) {
  if (value.is_none()) return Duration::zero();
  return std::max(to_duration(value, name), Duration(1));
}

uint64_t to_bytes(nb::handle value, const char* name) {
  if (PyUnicode_Check(value.ptr()) == 0) {
    if (PyIndex_Check(value.ptr()) != 0) return index_value(value, name);
    refuse(name, value, "a number of bytes, or text such as \"64MiB\"");
  }
  const auto parsed = parse_bytes(to_text(value, name));
  if (!parsed.ok()) refuse(name, parsed.status());
  return *parsed;
}

Access to_access(nb::handle value, const char* name) {
  std::string text;
  if (!nb::try_cast(value, text) || (text != "ro" && text != "rw")) {
    refuse(name, value, "\"ro\" or \"rw\"");
  }
  return text == "ro" ? Access::kReadOnly : Access::kReadWrite;
}

std::optional<Effort> to_effort(nb::handle value, const char* name) {
  if (value.is_none()) return std::nullopt;
  std::string text;
  if (nb::try_cast(value, text)) {
    if (text == "off") return Effort::kOff;
    if (text == "try") return Effort::kTry;
    if (text == "require") return Effort::kRequire;
  }
  refuse(name, value, "\"off\", \"try\" or \"require\"");
}

BytesView::BytesView(nb::handle object, const char* name) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) refuse(name, object, "a bytes-like object");
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
}

BytesView::~BytesView() { PyBuffer_Release(&view_); }

std::span<const std::byte> BytesView::bytes() const noexcept {
  return {static_cast<const std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
}

std::string shown_of(nb::handle object, size_t most) {
  const nb::object text = nb::steal(PyObject_Repr(object.ptr()));
  Py_ssize_t size = 0;
  const char* const utf8 = text.is_valid() ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
  if (utf8 == nullptr) {
    PyErr_Clear();
    return "?";
  }
  const std::string_view whole(utf8, static_cast<size_t>(size));
  if (whole.size() <= most) return std::string(whole);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(whole[end]) & 0xC0U) == 0x80U) --end;
  return std::string(whole.substr(0, end)) + "...";
}

const char* type_name_of(nb::handle object) noexcept { return Py_TYPE(object.ptr())->tp_name; }

nb::str to_str(std::string_view text) { return nb::str(text.data(), text.size()); }

nb::bytes to_bytes_object(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

}  // namespace stagelink::bindings
