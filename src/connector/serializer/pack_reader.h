#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stagelink::serializer {

// One MessagePack token. What has entries is followed by them.
struct Token {
  enum class Kind : uint8_t {
    kNil,
    kBoolean,
    kInteger,   // In `integer`.
    kUnsigned,  // In `number`; only for what does not fit `integer`.
    kReal,
    kText,
    kBytes,
    kList,  // `number` entries follow.
    kMap,   // `number` keys and values follow.
    kExtension,
  };
  Kind kind = Kind::kNil;
  int8_t extension = 0;
  bool boolean = false;
  int64_t integer = 0;
  uint64_t number = 0;
  double real = 0;
  std::span<const std::byte> bytes;  // Of texts, byte strings and extensions, in the frame.
};

// Reads tokens within bounds, of every legal width.
//
// Thread-safety: none; a decoder's own. A copy reads ahead.
class PackReader {
 public:
  explicit PackReader(std::span<const std::byte> in) noexcept : in_(in) {}

  // False at the end, for a token that is cut off, and for the one byte that is none; nothing more
  // can be read then.
  bool next(Token& token) noexcept;
  size_t left() const noexcept { return in_.size(); }

 private:
  bool number(size_t bytes, uint64_t& value) noexcept;
  bool sized(Token& token, Token::Kind kind, size_t length_bytes) noexcept;
  bool body(Token& token, Token::Kind kind, uint64_t size) noexcept;
  bool wide(Token& token, uint8_t code) noexcept;
  bool extension(Token& token, size_t length_bytes, uint64_t size) noexcept;

  std::span<const std::byte> in_;
};

}  // namespace stagelink::serializer
