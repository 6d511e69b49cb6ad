#include "bindings/convert/copied_memory.h"

#include <string_view>

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "bindings/convert/convert.h"
#include "bindings/convert/status_error.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

constexpr std::string_view kTorch = "torch.";

// Of memory that is one block.
bool in_order(nb::handle object) {
  if (nb::isinstance<nb::tuple>(object)) return true;
  if (nb::hasattr(object, "is_contiguous")) {
    return nb::cast<bool>(object.attr("is_contiguous")());
  }
  if (nb::hasattr(object, "__array_interface__")) {
    const nb::object interface = object.attr("__array_interface__");
    return interface.attr("get")("strides").is_none();  // As NumPy says it of C order alone.
  }
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_FULL_RO) == 0) {
    const bool found = PyBuffer_IsContiguous(&view, 'C') != 0;
    PyBuffer_Release(&view);
    return found;
  }
  PyErr_Clear();
  return nb::isinstance<nb::ndarray<nb::ro, nb::c_contig>>(object);
}

std::string format_name(const Py_buffer& view) {
  const std::string_view format = view.format == nullptr ? "B" : view.format;
  if (format == "B" || format == "b" || format == "c") return "";
  if (format == "?") return "bool";
  if (format.size() != 1) return std::string(format);
  const char* kind = "";
  if (std::string_view("efd").find(format[0]) != std::string_view::npos) kind = "float";
  if (std::string_view("hilqn").find(format[0]) != std::string_view::npos) kind = "int";
  if (std::string_view("HILQN").find(format[0]) != std::string_view::npos) kind = "uint";
  return *kind == '\0' ? std::string(format) : fmt::format("{}{}", kind, 8 * view.itemsize);
}

}  // namespace

PythonMemory memory_in_order(nb::handle object) {
  PythonMemory memory = PythonMemory::of(object);
  if (in_order(object)) return memory;
  raise(Status(Reason::kNotContiguous,
               fmt::format("the bytes of {} are not in the order of its elements: pass a copy in C "
                           "order",
                           type_name_of(object))));
}

PythonMemory writable_in_order(nb::handle object, const std::string& name) {
  PythonMemory memory = memory_in_order(object);
  if (!memory.read_only()) return memory;
  raise(Status(Reason::kReadOnly, fmt::format("{}: its memory cannot be written to", name)));
}

std::string element_type(nb::handle object) {
  if (nb::isinstance<nb::tuple>(object)) return "";
  if (nb::hasattr(object, "dtype")) {
    const nb::object dtype = object.attr("dtype");  // A str(attribute) would be the attribute.
    auto name = nb::cast<std::string>(nb::str(nb::handle(dtype)));
    if (name.starts_with(kTorch)) name.erase(0, kTorch.size());
    return name == "uint8" ? "" : name;
  }
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return "";
  }
  std::string name = format_name(view);
  PyBuffer_Release(&view);
  return name;
}

void require_element_type(nb::handle object, const std::string& said, const char* name) {
  const std::string own = element_type(object);
  if (own.empty() || own == said) return;
  if (said == "bfloat16" && own == "uint16") return;  // NumPy has no other for its bits.
  raise(Status(Reason::kInvalidArgument,
               fmt::format("{}: its elements are {}, not {}", name, own, said)));
}

}  // namespace stagelink::bindings
