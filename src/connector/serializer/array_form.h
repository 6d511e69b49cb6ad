#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "connector/serializer/pack_reader.h"
#include "connector/serializer/payload.h"
#include "stagelink/result.h"

namespace stagelink::serializer {

// An array as a frame describes it.
//
// Thread-safety: none; a decoder's own. Its texts are views of the frame.
class ArrayForm {
 public:
  static constexpr uint64_t kMapEntries = 4;

  // compat: true if the four entries that come are those of an array, in any order; the reader is
  // behind them then. A map with another key or another kind of value is a map of the user's, and
  // the reader stays before it.
  bool read_map(PackReader& reader);
  // fast: the payload of ext 1. False if it is cut off or longer than it says.
  bool read_note(std::span<const std::byte> note);

  // What shape and dtype say. Errors: corrupt (frame) for a dtype or mode that is not in the
  // tables, and for shapes that are none or do not fit them.
  Result<uint64_t> bytes() const;
  // Of a map: the bytes that stand in it.
  std::span<const std::byte> data() const noexcept { return data_; }
  ArrayView view(std::span<const std::byte> data) const noexcept;

 private:
  enum Field : uint8_t { kMarker = 1, kType = 2, kShape = 4, kData = 8, kAll = 15 };

  bool read_entry(PackReader& reader, uint8_t& fields);
  bool read_shape(PackReader& reader, uint64_t rank);
  std::span<const uint64_t> shape() const noexcept;

  ArrayKind kind_ = ArrayKind::kTensor;
  bool by_mode_ = false;  // A map said "mode" where it could have said "dtype".
  bool bad_shape_ = false;
  std::string_view dtype_;
  std::string_view mode_;
  size_t rank_ = 0;
  std::array<uint64_t, kMaxRank> shape_{};
  std::span<const std::byte> data_;
};

}  // namespace stagelink::serializer
