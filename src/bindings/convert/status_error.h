#pragma once

#include <nanobind/nanobind.h>

#include "stagelink/result.h"
#include "stagelink/status.h"

namespace stagelink::bindings {

// The Python exception for a failure: an instance of the class that stagelink.errors has for its
// code. The only way from a Status to Python.
nanobind::object to_exception(const Status& status);
[[noreturn]] void raise(const Status& status);

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

template <typename T>
T unwrap(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return *std::move(result);
}

}  // namespace stagelink::bindings
