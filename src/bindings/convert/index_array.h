#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

namespace stagelink::bindings {

// One argument of a range list: non-negative integers. A contiguous NumPy array of uint64 or int64
// (uint32 or int32 for region indices) is used in place; other integer arrays, torch tensors and
// sequences of int are copied; an int is one value. What does not fit is refused by index and
// value.
//
// Thread-safety: holds a reference to the Python object; create and destroy it with the interpreter
// lock. The values may be read without it.
template <typename T>
class IndexArray {
 public:
  IndexArray(nanobind::handle object, const char* name);
  ~IndexArray();
  IndexArray(const IndexArray&) = delete;
  IndexArray& operator=(const IndexArray&) = delete;

  // The argument was an int and stands for as many equal values as needed.
  bool is_scalar() const noexcept { return is_scalar_; }
  std::span<const T> values() const noexcept { return values_; }
  const char* name() const noexcept { return name_; }
  // A scalar becomes `count` values.
  void repeat(size_t count);

 private:
  void take_int(PyObject* object);
  bool take_buffer(PyObject* object);
  bool take_tensor(nanobind::handle object);
  void take_sequence(PyObject* object);
  template <typename Item>
  void take_items(const Py_buffer& view);
  bool fits_in_place(const Py_buffer& view) const;
  T parse(PyObject* item, size_t index) const;
  std::string place(size_t index) const;
  [[noreturn]] void refuse(const std::string& what) const;

  const char* name_;
  bool is_scalar_ = false;
  T scalar_ = 0;
  std::span<const T> values_;
  std::vector<T> copied_;
  std::optional<Py_buffer> view_;
};

// One integer argument.
uint64_t index_value(nanobind::handle object, const char* name);

extern template class IndexArray<uint64_t>;
extern template class IndexArray<uint32_t>;

}  // namespace stagelink::bindings
