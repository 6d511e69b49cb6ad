#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace stagelink::serializer {

// Appends MessagePack tokens, each in its shortest form. Lengths and counts fit 32 bits: the caller
// has checked.
//
// Thread-safety: none; an encoder's own.
class PackWriter {
 public:
  void nil() { byte(0xc0); }
  void boolean(bool value) { byte(value ? 0xc3 : 0xc2); }
  void real(double value) { number(0xcb, std::bit_cast<uint64_t>(value)); }
  void unsigned_integer(uint64_t value) {
    if (value < 0x80) return byte(static_cast<uint8_t>(value));
    if (value <= 0xff) return number(0xcc, static_cast<uint8_t>(value));
    if (value <= 0xffff) return number(0xcd, static_cast<uint16_t>(value));
    if (value <= 0xffffffff) return number(0xce, static_cast<uint32_t>(value));
    number(0xcf, value);
  }
  void integer(int64_t value) {
    if (value >= 0) return unsigned_integer(static_cast<uint64_t>(value));
    if (value >= -32) return byte(static_cast<uint8_t>(value));
    if (value >= INT8_MIN) return number(0xd0, static_cast<uint8_t>(value));
    if (value >= INT16_MIN) return number(0xd1, static_cast<uint16_t>(value));
    if (value >= INT32_MIN) return number(0xd2, static_cast<uint32_t>(value));
    number(0xd3, static_cast<uint64_t>(value));
  }
  void text_head(uint64_t bytes) {
    if (bytes < 32) return byte(static_cast<uint8_t>(0xa0 | bytes));
    head({0xd9, 0xda, 0xdb}, bytes);
  }
  void text(std::string_view value) {
    text_head(value.size());
    raw(std::as_bytes(std::span(value.data(), value.size())));
  }
  void bytes_head(uint64_t bytes) { head({0xc4, 0xc5, 0xc6}, bytes); }
  void list_head(uint64_t count) {
    if (count < 16) return byte(static_cast<uint8_t>(0x90 | count));
    head({0, 0xdc, 0xdd}, count);
  }
  // As wide as `widest` entries would need, for maps whose size was not known when they were begun.
  void map_head(uint64_t count, uint64_t widest) {
    if (widest < 16) return byte(static_cast<uint8_t>(0x80 | count));
    if (widest <= 0xffff) return number(0xde, static_cast<uint16_t>(count));
    number(0xdf, static_cast<uint32_t>(count));
  }
  void extension(int8_t type, std::span<const std::byte> payload) {
    if (std::has_single_bit(payload.size()) && payload.size() <= 16) {
      byte(static_cast<uint8_t>(0xd4 + std::countr_zero(payload.size())));
    } else {
      head({0xc7, 0xc8, 0xc9}, payload.size());
    }
    byte(static_cast<uint8_t>(type));
    raw(payload);
  }
  void raw(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }

  size_t size() const noexcept { return out_.size(); }
  std::span<std::byte> written() noexcept { return out_; }
  std::vector<std::byte> take() noexcept { return std::move(out_); }

 private:
  struct Codes {
    uint8_t of8;  // 0: there is none.
    uint8_t of16;
    uint8_t of32;
  };

  void byte(uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }
  // MessagePack is big-endian.
  template <std::unsigned_integral T>
  void number(uint8_t code, T value) {
    const size_t at = out_.size();
    out_.resize(at + 1 + sizeof(T));
    out_[at] = static_cast<std::byte>(code);
    for (size_t i = 0; i < sizeof(T); ++i) {
      out_[at + 1 + i] = static_cast<std::byte>(value >> (8 * (sizeof(T) - 1 - i)));
    }
  }
  void head(Codes codes, uint64_t size) {
    if (codes.of8 != 0 && size <= 0xff) return number(codes.of8, static_cast<uint8_t>(size));
    if (size <= 0xffff) return number(codes.of16, static_cast<uint16_t>(size));
    number(codes.of32, static_cast<uint32_t>(size));
  }

  std::vector<std::byte> out_;
};

}  // namespace stagelink::serializer
