#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connector/moriio/messages/message_fields.h"
#include "stagelink/result.h"

namespace stagelink::moriio {

struct IntegerRange {
  uint64_t min = 0;
  uint64_t max = 0;
};

// One MessagePack map with texts as keys, read field by field. The first field that is wrong is
// remembered; after it every read gives nothing, so a decoder reads all its fields and asks once,
// with finish(). Texts must be plain and not empty.
//
// Thread-safety: none; a decoder's local.
class MapReader {
 public:
  struct Limits {
    size_t frame_bytes = 0;
    size_t entries = 0;  // Of the map itself.
  };
  // `what` is a literal and stands before every message; `frame` must outlive the reader. Memory is
  // bounded by the frame: its structure is checked before any of it is built. Errors: corrupt
  // (frame), limit (too_large).
  static Result<MapReader> open(const char* what, std::span<const std::byte> frame,
                                const Limits& limits);
  ~MapReader();
  MapReader(MapReader&&) noexcept;
  MapReader(const MapReader&) = delete;
  MapReader& operator=(const MapReader&) = delete;
  MapReader& operator=(MapReader&&) = delete;

  bool has(std::string_view key) const;
  std::vector<std::string> keys() const;  // In the order of the frame.
  void set_what(const char* what) noexcept { what_ = what; }

  // A key that must be there.
  std::string text(std::string_view key, size_t max_bytes);
  Bytes bytes(std::string_view key, size_t max_bytes);
  bool flag(std::string_view key);
  uint64_t integer(std::string_view key, const IntegerRange& range);
  // The same, or decimal digits as text.
  uint64_t integer_or_digits(std::string_view key, const IntegerRange& range);
  // `max_count` bounds the list, `range` each entry.
  std::vector<int64_t> integers(std::string_view key, size_t max_count, const IntegerRange& range);
  std::vector<uint64_t> addresses(std::string_view key, size_t max_count);
  std::vector<Bytes> byte_lists(std::string_view key, size_t max_count, size_t max_bytes);
  // `max_count` bounds all lists together.
  std::vector<std::vector<int64_t>> integer_lists(std::string_view key, size_t max_lists,
                                                  size_t max_count, const IntegerRange& range);
  std::map<std::string, std::string> texts_by_name(std::string_view key, size_t max_count,
                                                   size_t max_bytes);
  std::map<std::string, uint64_t> integers_by_name(std::string_view key, size_t max_count);

  void reject(std::string_view key, std::string_view why);
  bool ok() const noexcept { return status_.ok(); }
  const Status& finish() const noexcept { return status_; }

 private:
  struct Impl;
  MapReader(const char* what, std::unique_ptr<Impl> impl);

  const char* what_;
  std::unique_ptr<Impl> impl_;
  Status status_;
};

// Writes one map, keys in the order of the calls, each value in its shortest form.
//
// Thread-safety: none.
class MapWriter {
 public:
  MapWriter();
  ~MapWriter();
  MapWriter(const MapWriter&) = delete;
  MapWriter& operator=(const MapWriter&) = delete;

  void text(std::string_view key, std::string_view value);
  void bytes(std::string_view key, std::span<const std::byte> value);
  void integer(std::string_view key, uint64_t value);
  void integers(std::string_view key, std::span<const int64_t> values);
  void addresses(std::string_view key, std::span<const uint64_t> values);
  void byte_lists(std::string_view key, std::span<const Bytes> values);
  void integer_lists(std::string_view key, std::span<const std::vector<int64_t>> values);
  void texts_by_name(std::string_view key, const std::map<std::string, std::string>& values);
  void integers_by_name(std::string_view key, const std::map<std::string, uint64_t>& values);

  Bytes take();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagelink::moriio
