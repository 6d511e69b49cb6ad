#include "connector/serializer/dtype.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace stagelink::serializer {
namespace {

constexpr auto kDtypes = std::to_array<Dtype>({
    {"bool", 1, true, "|b1"},
    {"uint8", 1, true, "|u1"},
    {"int8", 1, true, "|i1"},
    {"uint16", 2, true, "<u2"},
    {"int16", 2, true, "<i2"},
    {"uint32", 4, true, "<u4"},
    {"int32", 4, true, "<i4"},
    {"uint64", 8, true, "<u8"},
    {"int64", 8, true, "<i8"},
    {"float16", 2, true, "<f2"},
    {"float32", 4, true, "<f4"},
    {"float64", 8, true, "<f8"},
    {"complex64", 8, true, "<c8"},
    {"complex128", 16, true, "<c16"},
    {"complex32", 4, true, ""},
    {"bfloat16", 2, true, ""},
    {"float8_e4m3fn", 1, true, ""},
    {"float8_e4m3fnuz", 1, true, ""},
    {"float8_e5m2", 1, true, ""},
    {"float8_e5m2fnuz", 1, true, ""},
    {"float8_e8m0fnu", 1, true, ""},
    {"float4_e2m1fn_x2", 1, true, ""},
    {"uint4", 1, true, ""},
    {"int4", 1, true, ""},
    {"uint2", 1, true, ""},
    {"int2", 1, true, ""},
    {"float8_e3m4", 1, false, ""},
    {"float8_e4m3", 1, false, ""},
    {"float8_e4m3b11fnuz", 1, false, ""},
    {"float6_e2m3fn", 1, false, ""},
    {"float6_e3m2fn", 1, false, ""},
    {"float4_e2m1fn", 1, false, ""},
});

constexpr auto kImageModes = std::to_array<ImageMode>({
    {"1", 1, "|b1"},    {"L", 1, "|u1"},     {"P", 1, "|u1"},     {"LA", 2, "|u1"},
    {"La", 2, "|u1"},   {"PA", 2, "|u1"},    {"RGB", 3, "|u1"},   {"RGBA", 4, "|u1"},
    {"RGBa", 4, "|u1"}, {"RGBX", 4, "|u1"},  {"CMYK", 4, "|u1"},  {"YCbCr", 3, "|u1"},
    {"LAB", 3, "|u1"},  {"HSV", 3, "|u1"},   {"I", 1, "<i4"},     {"F", 1, "<f4"},
    {"I;16", 1, "<u2"}, {"I;16L", 1, "<u2"}, {"I;16B", 1, ">u2"},
});

// The kinds of numbers that NumPy has, and their sizes in bytes.
bool is_number(char kind, uint64_t bytes) noexcept {
  switch (kind) {
    case 'b': return bytes == 1;
    case 'i':
    case 'u': return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
    case 'f': return bytes == 2 || bytes == 4 || bytes == 8 || bytes == 12 || bytes == 16;
    case 'c': return bytes == 8 || bytes == 16 || bytes == 24 || bytes == 32;
    default: return false;
  }
}

// "", "[ns]", "[25us]": the unit of a date or a duration.
bool is_unit(std::string_view text) noexcept {
  if (text.empty()) return true;
  if (text.size() < 3 || text.front() != '[' || text.back() != ']') return false;
  text = text.substr(1, text.size() - 2);
  while (!text.empty() && text.front() >= '0' && text.front() <= '9') text.remove_prefix(1);
  constexpr auto kUnits = std::to_array<std::string_view>(
      {"Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"});
  return std::ranges::find(kUnits, text) != kUnits.end();
}

}  // namespace

std::span<const Dtype> all_dtypes() noexcept { return kDtypes; }

const Dtype* find_dtype(std::string_view name) noexcept {
  const auto found = std::ranges::find(kDtypes, name, &Dtype::name);
  return found == kDtypes.end() ? nullptr : &*found;
}

std::optional<uint64_t> numpy_item_bytes(std::string_view typestr) noexcept {
  constexpr size_t kLongest = 32;
  if (typestr.size() < 3 || typestr.size() > kLongest) return std::nullopt;
  if (typestr[0] != '<' && typestr[0] != '>' && typestr[0] != '|') return std::nullopt;
  const char kind = typestr[1];
  uint32_t count = 0;  // 32 bits: four times that does not overflow.
  const char* const end = typestr.data() + typestr.size();
  const auto [stop, error] = std::from_chars(typestr.data() + 2, end, count);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit(stop, static_cast<size_t>(end - stop));
  if (kind == 'M' || kind == 'm') {
    return count == 8 && is_unit(unit) ? std::optional<uint64_t>(8) : std::nullopt;
  }
  if (!unit.empty()) return std::nullopt;
  if (kind == 'S') return count;
  if (kind == 'U') return uint64_t{count} * 4;
  return is_number(kind, count) ? std::optional<uint64_t>(count) : std::nullopt;
}

std::optional<uint64_t> array_item_bytes(std::string_view dtype) noexcept {
  if (const Dtype* const known = find_dtype(dtype); known != nullptr) return known->bytes;
  return numpy_item_bytes(dtype);
}

const ImageMode* find_image_mode(std::string_view name) noexcept {
  const auto found = std::ranges::find(kImageModes, name, &ImageMode::name);
  return found == kImageModes.end() ? nullptr : &*found;
}

}  // namespace stagelink::serializer
