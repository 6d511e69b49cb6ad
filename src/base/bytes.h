#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace stagelink {

static_assert(std::endian::native == std::endian::little,
              "Layouts are little-endian; a big-endian port needs swaps in bytes.h");

// Appends fixed-width little-endian fields.
class ByteWriter {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    const size_t at = out_.size();
    out_.resize(at + sizeof(T));
    std::memcpy(out_.data() + at, &value, sizeof(T));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  // u16 length, then the bytes. The caller has checked that it fits.
  void put_string(std::string_view text) {
    put(static_cast<uint16_t>(text.size()));
    put_bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  std::vector<std::byte> take() { return std::move(out_); }
  size_t size() const noexcept { return out_.size(); }

 private:
  std::vector<std::byte> out_;
};

// Reads fixed-width little-endian fields within bounds. After the first failure every read gives
// zero and ok() stays false, so a decoder checks once at its end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) noexcept : in_(in) {}

  template <typename T>
  T get() noexcept {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    T value{};
    if (const auto raw = get_bytes(sizeof(T)); !raw.empty()) {
      std::memcpy(&value, raw.data(), sizeof(T));
    }
    return value;
  }
  std::span<const std::byte> get_bytes(size_t count) noexcept {
    if (!ok_ || in_.size() < count) {
      ok_ = false;
      return {};
    }
    const auto out = in_.first(count);
    in_ = in_.subspan(count);
    return out;
  }
  std::string_view get_string() noexcept {
    const auto raw = get_bytes(get<uint16_t>());
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  void fail() noexcept { ok_ = false; }
  bool ok() const noexcept { return ok_; }
  size_t left() const noexcept { return in_.size(); }
  bool done() const noexcept { return ok_ && in_.empty(); }

 private:
  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace stagelink
