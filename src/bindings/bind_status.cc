#include <chrono>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/status_error.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

// "timed_out" is raised as stagelink.errors.TimedOut.
std::string class_name(Code code) {
  std::string name;
  bool upper = true;
  for (const char c : code_name(code)) {
    if (c == '_') {
      upper = true;
      continue;
    }
    name += upper ? static_cast<char>(c - 'a' + 'A') : c;
    upper = false;
  }
  return name;
}

// What stagelink.errors is checked against: code to scope and reason to code, as in status.h.
nb::dict scopes() {
  nb::dict table;
  for (int i = 1; i < kCodeCount; ++i) {
    const auto code = static_cast<Code>(i);
    table[to_str(code_name(code))] = to_str(scope_name(scope_of(code)));
  }
  return table;
}

nb::dict reasons() {
  nb::dict table;
  for (int i = 1; i < kReasonCount; ++i) {
    const auto reason = static_cast<Reason>(i);
    table[to_str(reason_name(reason))] = to_str(code_name(code_of(reason)));
  }
  return table;
}

}  // namespace

nb::object to_exception(const Status& status) {
  const nb::object type =
      nb::module_::import_("stagelink.errors").attr(class_name(status.code()).c_str());
  return type(to_str(status.message()), to_str(reason_name(status.reason())));
}

void raise(const Status& status) {
  const nb::object exception = to_exception(status);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

void bind_status(nb::module_& m) {
  m.def(
      "seconds",
      [](nb::handle value, const std::string& name) {
        return std::chrono::duration<double>(to_duration(value, name.c_str())).count();
      },
      as_given("value"), nb::arg("name"),
      nb::sig("def seconds(value: Timeout, name: str) -> float"),
      "A duration as seconds, or InvalidArgument that names it.");
  m.def("scopes", &scopes, nb::sig("def scopes() -> dict[str, str]"),
        "Every error code and its scope.");
  m.def("reasons", &reasons, nb::sig("def reasons() -> dict[str, str]"),
        "Every reason and the code it belongs to.");
}

}  // namespace stagelink::bindings
