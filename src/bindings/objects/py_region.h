#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <nanobind/nanobind.h>

#include "bindings/convert/python_memory.h"
#include "stagelink/region.h"

namespace stagelink::bindings {

class PyEngine;

// A Region as Python sees it: it also keeps the Python object that owns the memory, and counts the
// memoryviews and arrays that look at it. Memory stays in place until the region is deregistered
// and the last of them is gone.
//
// Thread-safety: used with the interpreter lock.
class PyRegion {
 public:
  PyRegion(nanobind::object engine, Region region, std::optional<PythonMemory> memory);
  ~PyRegion();
  PyRegion(const PyRegion&) = delete;
  PyRegion& operator=(const PyRegion&) = delete;

  const Region& region() const noexcept { return region_; }
  std::span<std::byte> bytes() const noexcept { return bytes_; }
  bool is_open() const noexcept { return open_; }
  // The object that owns the memory does not let it be written.
  bool read_only() const noexcept { return memory_.has_value() && memory_->read_only(); }
  void deregister(std::optional<Duration> timeout);

  // The buffer protocol.
  static int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept;
  static void release_buffer(PyObject* self, Py_buffer* view) noexcept;

 private:
  nanobind::object engine_;
  Region region_;
  const std::span<std::byte> bytes_;
  std::optional<PythonMemory> memory_;  // None for memory of the engine's own...
  std::shared_ptr<const void> held_;    // ...which this keeps mapped while there are exports.
  uint32_t exports_ = 0;
  bool open_ = true;
};

}  // namespace stagelink::bindings
