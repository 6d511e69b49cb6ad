#include "connector/serializer/pack_reader.h"

#include <bit>

namespace stagelink::serializer {
namespace {

constexpr size_t width_of(uint8_t code, uint8_t first) { return size_t{1} << (code - first); }

void set_integer(Token& token, int64_t value) noexcept {
  token.kind = Token::Kind::kInteger;
  token.integer = value;
}

void set_unsigned(Token& token, uint64_t value) noexcept {
  if (value <= INT64_MAX) return set_integer(token, static_cast<int64_t>(value));
  token.kind = Token::Kind::kUnsigned;
  token.number = value;
}

// The number's own width decides where its sign is.
int64_t sign_extended(uint64_t value, size_t bytes) noexcept {
  const size_t unused = 64 - 8 * bytes;
  return static_cast<int64_t>(value << unused) >> unused;
}

}  // namespace

bool PackReader::number(size_t bytes, uint64_t& value) noexcept {
  if (in_.size() < bytes) return false;
  value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | std::to_integer<uint64_t>(in_[i]);
  in_ = in_.subspan(bytes);
  return true;
}

bool PackReader::body(Token& token, Token::Kind kind, uint64_t size) noexcept {
  if (in_.size() < size) return false;
  token.kind = kind;
  token.bytes = in_.first(size);
  in_ = in_.subspan(size);
  return true;
}

bool PackReader::sized(Token& token, Token::Kind kind, size_t length_bytes) noexcept {
  uint64_t size = 0;
  if (!number(length_bytes, size)) return false;
  if (kind == Token::Kind::kList || kind == Token::Kind::kMap) {
    token.kind = kind;
    token.number = size;
    return true;
  }
  return body(token, kind, size);
}

bool PackReader::extension(Token& token, size_t length_bytes, uint64_t size) noexcept {
  if (length_bytes > 0 && !number(length_bytes, size)) return false;
  uint64_t type = 0;
  if (!number(1, type)) return false;
  token.extension = static_cast<int8_t>(type);
  return body(token, Token::Kind::kExtension, size);
}

bool PackReader::next(Token& token) noexcept {
  uint64_t first = 0;
  if (!number(1, first)) return false;
  const auto code = static_cast<uint8_t>(first);
  if (code < 0x80) return set_integer(token, code), true;
  if (code >= 0xe0) return set_integer(token, static_cast<int8_t>(code)), true;
  if (code >= 0xa0 && code < 0xc0) return body(token, Token::Kind::kText, code & 0x1fu);
  if (code < 0xa0) {
    token.kind = code < 0x90 ? Token::Kind::kMap : Token::Kind::kList;
    token.number = code & 0x0fu;
    return true;
  }
  return wide(token, code);
}

bool PackReader::wide(Token& token, uint8_t code) noexcept {
  uint64_t value = 0;
  switch (code) {
    case 0xc0: token.kind = Token::Kind::kNil; return true;
    case 0xc2:
    case 0xc3:
      token.kind = Token::Kind::kBoolean;
      token.boolean = code == 0xc3;
      return true;
    case 0xc4:
    case 0xc5:
    case 0xc6: return sized(token, Token::Kind::kBytes, width_of(code, 0xc4));
    case 0xc7:
    case 0xc8:
    case 0xc9: return extension(token, width_of(code, 0xc7), 0);
    case 0xca:
      if (!number(4, value)) return false;
      token.kind = Token::Kind::kReal;
      token.real = std::bit_cast<float>(static_cast<uint32_t>(value));
      return true;
    case 0xcb:
      if (!number(8, value)) return false;
      token.kind = Token::Kind::kReal;
      token.real = std::bit_cast<double>(value);
      return true;
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
      if (!number(width_of(code, 0xcc), value)) return false;
      return set_unsigned(token, value), true;
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
      if (!number(width_of(code, 0xd0), value)) return false;
      return set_integer(token, sign_extended(value, width_of(code, 0xd0))), true;
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8: return extension(token, 0, width_of(code, 0xd4));
    case 0xd9:
    case 0xda:
    case 0xdb: return sized(token, Token::Kind::kText, width_of(code, 0xd9));
    case 0xdc:
    case 0xdd: return sized(token, Token::Kind::kList, 2 * width_of(code, 0xdc));
    case 0xde:
    case 0xdf: return sized(token, Token::Kind::kMap, 2 * width_of(code, 0xde));
    default:  // 0xc1
      return false;
  }
}

}  // namespace stagelink::serializer
