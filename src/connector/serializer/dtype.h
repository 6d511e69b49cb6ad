#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace stagelink::serializer {

// A type of elements that payloads may hold. `name` is torch's without "torch.", or that of the
// package ml_dtypes; every element takes `bytes` of its own.
struct Dtype {
  std::string_view name;
  uint32_t bytes;
  bool torch;              // torch has it.
  std::string_view numpy;  // What NumPy itself writes for it; empty where it takes ml_dtypes.
};

// The table is fixed: a name from the wire is looked up here and nowhere else.
std::span<const Dtype> all_dtypes() noexcept;
const Dtype* find_dtype(std::string_view name) noexcept;

// The bytes of an element of one of NumPy's own types ("<f4", ">i2", "|b1", "<U5", "<M8[ns]").
// Nothing for objects, void and structured types, and for what is no such type.
std::optional<uint64_t> numpy_item_bytes(std::string_view typestr) noexcept;

// The bytes of an element of an array: of either table.
std::optional<uint64_t> array_item_bytes(std::string_view dtype) noexcept;

// How a picture of one of Pillow's modes lies in memory. `item` is one of NumPy's types.
struct ImageMode {
  std::string_view name;
  uint32_t channels;
  std::string_view item;
};
const ImageMode* find_image_mode(std::string_view name) noexcept;

}  // namespace stagelink::serializer
