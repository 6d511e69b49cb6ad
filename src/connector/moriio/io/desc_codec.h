#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/result.h"

namespace stagelink::moriio {

inline constexpr size_t kHandleBytes = 64;
using Handle = std::array<std::byte, kHandleBytes>;

// Writes one msgpack array of scalars, the form of mori's descriptors.
class DescWriter {
 public:
  explicit DescWriter(uint32_t fields);
  ~DescWriter();
  DescWriter(const DescWriter&) = delete;
  DescWriter& operator=(const DescWriter&) = delete;

  void put_text(std::string_view text);
  void put_unsigned(uint64_t value);
  void put_signed(int64_t value);
  void put_handle(const Handle& handle);  // As bin of 64 bytes.
  std::vector<std::byte> take() const;

 private:
  struct Buffer;
  const std::unique_ptr<Buffer> buffer_;
};

// Reads such an array from bytes that nobody has checked. Fields that a shorter array lacks keep
// the value they had; what a longer one has more is ignored. Remembers the first field that was
// wrong, so a decoder reads all its fields and asks once, with status().
class DescReader {
 public:
  static constexpr size_t kMaxBytes = 16 << 10;
  static constexpr uint32_t kMaxFields = 64;
  static constexpr size_t kMaxTextBytes = 256;

  // Errors: corrupt (frame): not one array, or beyond the bounds. `what` is a literal.
  static Result<DescReader> open(std::span<const std::byte> blob, const char* what);
  DescReader(DescReader&&) noexcept;
  ~DescReader();

  // At most kMaxTextBytes of plain text, so that it can stand in a log line.
  void take_text(const char* field, std::string& value);
  void take_unsigned(const char* field, uint64_t max, uint64_t& value);
  void take_signed(const char* field, int64_t min, int64_t max, int64_t& value);
  void take_handle(const char* field, Handle& value);
  // Errors: corrupt (frame) names the first field that was wrong.
  const Status& status() const noexcept { return status_; }

 private:
  struct Items;
  DescReader(const char* what, std::unique_ptr<Items> items) noexcept;
  void reject(const char* field, std::string_view why);

  const char* what_;
  std::unique_ptr<Items> items_;
  uint32_t next_ = 0;
  Status status_;
};

}  // namespace stagelink::moriio
