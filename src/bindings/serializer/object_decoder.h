#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>

#include "connector/serializer/payload_decoder.h"
#include "stagelink/status.h"

namespace stagelink::bindings {

// Builds Python objects from a frame. Tensors, arrays and pictures are views of `owner`'s memory
// and keep it alive, unless they are to be copied. NumPy, torch, Pillow and ml_dtypes are imported
// when something of theirs comes, and only then; where torch is not installed a tensor becomes an
// array.
//
// Thread-safety: used with the interpreter lock.
class ObjectDecoder final : public serializer::PayloadSink {
 public:
  // `frame` must be the memory of `owner`, a memoryview. `revive`: None, or a callable that each
  // dict is given to and whose answer takes its place.
  ObjectDecoder(std::span<const std::byte> frame, nanobind::object owner, bool copy,
                nanobind::handle revive);

  // Raises what stopped it.
  nanobind::object result(const Status& status);

  bool nil() override;
  bool boolean(bool value) override;
  bool integer(int64_t value) override;
  bool unsigned_integer(uint64_t value) override;
  bool real(double value) override;
  bool time(int64_t seconds, uint32_t nanoseconds) override;
  bool text(std::string_view value) override;
  bool bytes(std::span<const std::byte> value) override;
  bool array(const serializer::ArrayView& value) override;
  bool begin_list(uint64_t count, serializer::ListKind kind) override;
  bool begin_map(uint64_t count) override;
  bool end() override;

 private:
  struct Open {
    nanobind::object container;  // A list, until all of it is there; a dict.
    serializer::ListKind kind;
    bool map;
    nanobind::object key;  // Whose value is next.
  };

  // Takes a new reference; null: Python has an exception.
  bool put(PyObject* value);
  bool put(nanobind::object value);
  bool fail(std::string message);
  // Runs `make`; what it raises is kept, and the frame blamed unless a package is missing.
  template <typename Make>
  bool make(Make make_object);

  nanobind::object make_array(const serializer::ArrayView& view) const;
  nanobind::object make_tensor(const serializer::ArrayView& view);
  nanobind::object copied_tensor(const serializer::ArrayView& view, nanobind::handle type) const;
  nanobind::object make_image(const serializer::ArrayView& view) const;
  nanobind::object finished(const Open& open) const;
  size_t offset_of(const serializer::ArrayView& view) const noexcept;

  std::span<const std::byte> frame_;
  nanobind::object owner_;
  bool copy_;
  nanobind::handle revive_;
  nanobind::object torch_;  // None: not installed. Null: not asked yet.
  std::vector<Open> open_;
  nanobind::object result_;
  Status failure_;
  bool raised_ = false;  // Python has the exception.
};

}  // namespace stagelink::bindings
