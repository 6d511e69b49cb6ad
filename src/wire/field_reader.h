#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "stagelink/region.h"
#include "stagelink/status.h"

namespace stagelink::wire {

// A ByteReader that remembers the name of the first field that was wrong. After a failure every
// read gives zero, so a decoder reads all its fields and asks once, with finish().
//
// Thread-safety: a value.
class FieldReader {
 public:
  // `what` and all field names are literals.
  FieldReader(const char* what, std::span<const std::byte> in) noexcept : what_(what), in_(in) {}

  template <typename T>
  T get(const char* field) noexcept {
    const T value = in_.get<T>();
    note(field);
    return value;
  }
  InstanceId get_instance(const char* field) noexcept {
    const auto high = get<uint64_t>(field);
    return {high, get<uint64_t>(field)};
  }
  // Reserved for later minors of the protocol: must be zero.
  template <typename T>
  void get_zero(const char* field) {
    if (const T value = get<T>(field); value != 0) reject(field, "is not zero", value);
  }
  // A length and text without control characters, so that it can stand in a log line.
  std::string get_text(const char* field, size_t max_bytes);
  std::span<const std::byte> get_bytes(const char* field, size_t count) noexcept {
    const auto bytes = in_.get_bytes(count);
    note(field);
    return bytes;
  }

  // Declares the field just read wrong. Only the first wrong field counts.
  void reject(const char* field, const char* why, uint64_t value);
  bool ok() const noexcept { return failed_field_ == nullptr; }
  size_t left() const noexcept { return in_.left(); }

  // Corrupt (frame) that names the first wrong field, or the bytes that are left over. A sender
  // with a newer minor may append fields: then what is left is ignored.
  Status finish(bool may_have_more = false) const;

 private:
  void note(const char* field) noexcept {
    if (!in_.ok() && failed_field_ == nullptr) failed_field_ = field;
  }

  const char* what_;
  ByteReader in_;
  const char* failed_field_ = nullptr;
  std::string why_;  // Empty: the input ended inside the field.
};

}  // namespace stagelink::wire
