#include "connector/serializer/array_form.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/serializer/dtype.h"

namespace stagelink::serializer {
namespace {

std::string_view to_text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::optional<ArrayKind> kind_of_marker(std::string_view key) noexcept {
  if (key == "__tensor__") return ArrayKind::kTensor;
  if (key == "__ndarray__") return ArrayKind::kNdarray;
  if (key == "__pil_image__") return ArrayKind::kImage;
  return std::nullopt;
}

Status not_an_array(std::string message) {
  return {Reason::kFrame, "payload: " + std::move(message)};
}

}  // namespace

bool ArrayForm::read_map(PackReader& reader) {
  PackReader ahead = reader;
  uint8_t fields = 0;
  for (uint64_t i = 0; i < kMapEntries; ++i) {
    if (!read_entry(ahead, fields)) return false;
  }
  if (fields != kAll || by_mode_ != (kind_ == ArrayKind::kImage)) return false;
  if (by_mode_) std::swap(dtype_, mode_);
  reader = ahead;
  return true;
}

bool ArrayForm::read_entry(PackReader& reader, uint8_t& fields) {
  Token token;
  if (!reader.next(token) || token.kind != Token::Kind::kText) return false;
  const std::string_view key = to_text(token.bytes);
  const auto kind = kind_of_marker(key);
  if (!kind.has_value() && key != "dtype" && key != "mode" && key != "shape" && key != "data") {
    return false;
  }
  if (!reader.next(token)) return false;
  if (kind.has_value()) {
    fields |= kMarker;
    kind_ = *kind;
    return token.kind == Token::Kind::kBoolean && token.boolean;
  }
  if (key == "shape") {
    fields |= kShape;
    return token.kind == Token::Kind::kList && read_shape(reader, token.number);
  }
  if (key == "data") {
    fields |= kData;
    data_ = token.bytes;
    return token.kind == Token::Kind::kBytes;
  }
  fields |= kType;
  by_mode_ = key == "mode";
  dtype_ = to_text(token.bytes);
  return token.kind == Token::Kind::kText;
}

bool ArrayForm::read_shape(PackReader& reader, uint64_t rank) {
  if (rank > kMaxRank) return false;
  rank_ = rank;
  for (size_t i = 0; i < rank; ++i) {
    Token token;
    if (!reader.next(token)) return false;
    if (token.kind != Token::Kind::kInteger && token.kind != Token::Kind::kUnsigned) return false;
    bad_shape_ = bad_shape_ || token.kind != Token::Kind::kInteger || token.integer < 0;
    shape_[i] = static_cast<uint64_t>(token.integer);
  }
  return true;
}

bool ArrayForm::read_note(std::span<const std::byte> note) {
  if (note.size() < 4) return false;
  const auto byte = [note](size_t at) { return std::to_integer<size_t>(note[at]); };
  const size_t kind = byte(0);
  rank_ = byte(1);
  const size_t dtype = byte(2);
  const size_t mode = byte(3);
  if (kind > static_cast<size_t>(ArrayKind::kImage) || rank_ > kMaxRank) return false;
  if (note.size() != 4 + dtype + mode + rank_ * sizeof(uint64_t)) return false;
  kind_ = static_cast<ArrayKind>(kind);
  dtype_ = to_text(note.subspan(4, dtype));
  mode_ = to_text(note.subspan(4 + dtype, mode));
  if (rank_ > 0) std::memcpy(shape_.data(), note.data() + 4 + dtype + mode, rank_ * 8);
  return true;
}

std::span<const uint64_t> ArrayForm::shape() const noexcept {
  return std::span(shape_).first(rank_);
}

Result<uint64_t> ArrayForm::bytes() const {
  std::optional<uint64_t> item;
  if (kind_ == ArrayKind::kImage) {
    const ImageMode* const mode = find_image_mode(mode_);
    if (mode == nullptr || !dtype_.empty()) {
      return not_an_array(
          fmt::format("pictures of mode `{}` are not known", to_plain_text(mode_, 40)));
    }
    const size_t rank = mode->channels == 1 ? 2 : 3;
    if (rank_ != rank || (rank == 3 && shape_[2] != mode->channels)) {
      return not_an_array(fmt::format("a picture of mode {} whose shape is another's", mode->name));
    }
    item = numpy_item_bytes(mode->item);
    if (by_mode_ && item != uint64_t{1}) {
      return not_an_array(fmt::format("a picture of mode {} without its values", mode->name));
    }
  } else if (kind_ == ArrayKind::kTensor) {
    const Dtype* const dtype = find_dtype(dtype_);
    if (dtype != nullptr && dtype->torch) item = dtype->bytes;
  } else {
    item = array_item_bytes(dtype_);
  }
  if (!item.has_value()) {
    return not_an_array(
        fmt::format("elements of type `{}` are not known", to_plain_text(dtype_, 40)));
  }
  if (bad_shape_) return not_an_array("an array with a negative or immense extent");
  // An extent of zero makes all others harmless, wherever it stands.
  if (std::ranges::find(shape(), uint64_t{0}) != shape().end()) return uint64_t{0};
  uint64_t total = *item;
  for (const uint64_t extent : shape()) {
    if (__builtin_mul_overflow(total, extent, &total) || total > INT64_MAX) {
      return not_an_array("an array that is larger than any memory");
    }
  }
  return total;
}

ArrayView ArrayForm::view(std::span<const std::byte> data) const noexcept {
  ArrayView out{kind_, dtype_, mode_, shape(), data};
  if (kind_ == ArrayKind::kImage) {
    out.dtype = by_mode_ ? std::string_view("|u1") : find_image_mode(mode_)->item;
  }
  return out;
}

}  // namespace stagelink::serializer
