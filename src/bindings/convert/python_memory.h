#pragma once

#include <cstddef>
#include <optional>

#include <nanobind/nanobind.h>

namespace stagelink::bindings {

// The bytes of a Python object, which it keeps alive and in place. What it takes:
//  - (address, nbytes): nothing is kept alive, that is the caller's business;
//  - anything with the buffer protocol (NumPy arrays, bytearray, mmap, memoryview);
//  - anything shaped like a torch tensor (data_ptr, element_size, shape, stride), without importing
//    torch; anything with __array_interface__ or __dlpack__.
// C and Fortran order count as contiguous. All else is refused by its shape and strides, and memory
// that is not the host's by its device.
//
// Thread-safety: holds references to Python objects; create, move and destroy it with the
// interpreter lock.
class PythonMemory {
 public:
  // Raises InvalidArgument (not_contiguous, unsupported).
  static PythonMemory of(nanobind::handle object);
  PythonMemory(PythonMemory&& other) noexcept;
  PythonMemory& operator=(PythonMemory&& other) noexcept;
  PythonMemory(const PythonMemory&) = delete;
  PythonMemory& operator=(const PythonMemory&) = delete;
  ~PythonMemory();

  void* address() const noexcept { return address_; }
  size_t bytes() const noexcept { return bytes_; }
  bool read_only() const noexcept { return read_only_; }

 private:
  PythonMemory() noexcept = default;
  static PythonMemory of_pair(nanobind::tuple pair);
  static PythonMemory of_buffer(nanobind::handle object);
  static PythonMemory of_tensor(nanobind::handle object);
  static PythonMemory of_interface(nanobind::handle object);
  static PythonMemory of_dlpack(nanobind::handle object);

  void* address_ = nullptr;
  size_t bytes_ = 0;
  bool read_only_ = false;
  std::optional<Py_buffer> buffer_;  // Keeps a bytearray from being resized, too.
  nanobind::object owner_;
};

}  // namespace stagelink::bindings
