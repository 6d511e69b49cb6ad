#include "bindings/objects/closed_at_exit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "bindings/convert/gil.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

// Those that exist. Guarded by the interpreter lock.
std::vector<ClosedAtExit*>& open_objects() {
  static std::vector<ClosedAtExit*> objects;
  return objects;
}

void close_all() {
  announce_exit();
  const std::vector<ClosedAtExit*> objects = open_objects();
  for (ClosedAtExit* object : objects) object->close_at_exit();
}

}  // namespace

ClosedAtExit::ClosedAtExit() {
  static bool registered = false;
  if (!std::exchange(registered, true)) {
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&close_all));
  }
  open_objects().push_back(this);
}

ClosedAtExit::~ClosedAtExit() { std::erase(open_objects(), this); }

}  // namespace stagelink::bindings
