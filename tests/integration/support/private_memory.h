#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "stagelink/engine_options.h"

namespace stagelink::test {

inline constexpr std::byte kUntouched{0xEE};

// Bytes that depend on the seed and on their place, so that a byte in the wrong place shows.
void fill_pattern(std::span<std::byte> bytes, uint64_t seed, uint64_t place = 0);
// Position of the first byte that is not of the pattern.
std::optional<size_t> first_wrong(std::span<const std::byte> bytes, uint64_t seed,
                                  uint64_t place = 0);
// Position of the first byte that is not `value`.
std::optional<size_t> first_not(std::span<const std::byte> bytes, std::byte value);

// Zeroed pages that go when the object goes.
class PageMap {
 public:
  explicit PageMap(size_t bytes);
  PageMap(PageMap&& other) noexcept;
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;
  ~PageMap();
  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

// Memory of the caller as a test wants it: filled with kUntouched, with a canary page before and
// behind it.
class PrivateMemory {
 public:
  explicit PrivateMemory(size_t bytes);
  std::span<std::byte> bytes() const noexcept { return data_; }
  std::byte* data() const noexcept { return data_.data(); }
  size_t size() const noexcept { return data_.size(); }
  void reset() const;  // All kUntouched again.
  bool canaries_intact() const;

 private:
  PageMap map_;
  std::span<std::byte> data_;
};

// More address space than there is memory: one window of pages mapped again and again, and a tail
// of its own behind it. Bytes of the body are therefore judged by the tail and by lengths only.
class AliasedMemory {
 public:
  AliasedMemory(size_t body, size_t tail);
  AliasedMemory(const AliasedMemory&) = delete;
  AliasedMemory& operator=(const AliasedMemory&) = delete;
  ~AliasedMemory();
  std::span<std::byte> bytes() const noexcept { return bytes_; }
  std::span<std::byte> tail() const noexcept { return bytes_.last(tail_); }

 private:
  std::span<std::byte> bytes_;
  size_t tail_;
};

// Pages that this process alone has mapped and written. Not its proportional set: that grows when
// another process with the same program ends.
uint64_t own_bytes();

}  // namespace stagelink::test
