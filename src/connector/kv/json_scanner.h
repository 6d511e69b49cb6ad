#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace stagelink::kv {

// Reads a JSON text from front to back within bounds. Values that nobody asks for are skipped, and
// can be had as the text they are. NaN and Infinity are numbers, as for Python. The first thing
// that is wrong ends it: every call is false from then on.
//
// Thread-safety: none; a decoder's own.
class JsonScanner {
 public:
  static constexpr size_t kMaxDepth = 32;

  explicit JsonScanner(std::string_view text) noexcept : text_(text) {}

  // '{', then next_key() for each entry until it is false; '[', then next_item(). What follows must
  // be read or skipped.
  bool begin_object() { return open('{'); }
  bool next_key(std::string& key);
  bool begin_array() { return open('['); }
  bool next_item();

  bool string(std::string& out);
  // No fractions and no exponents; 64 bits.
  bool integer(int64_t& out);
  bool boolean(bool& out);
  bool null();
  // One value of any kind. `raw`: its text.
  bool skip(std::string_view& raw);
  // The kind of the next value by its first byte: '"', '{', '[', 'n', 't', 'f', or a digit's place
  // '0'; 0: the end.
  char peek() noexcept;
  // Nothing but white space is left, and nothing was wrong.
  bool finished();

  bool failed() const noexcept { return problem_ != nullptr; }
  // "expected a number at byte 17".
  std::string problem() const;

 private:
  bool open(char bracket);
  bool wrong(const char* problem) noexcept;
  void space() noexcept;
  bool take(char wanted) noexcept;
  bool word(std::string_view wanted) noexcept;
  bool escape(std::string& out);
  bool unicode(std::string& out);
  bool hex4(uint32_t& out) noexcept;
  bool number() noexcept;
  bool value(size_t depth);
  bool members(size_t depth, bool named);

  std::string_view text_;
  size_t at_ = 0;
  bool fresh_ = false;  // Behind an opening bracket: no comma before the next entry.
  std::string scratch_;
  const char* problem_ = nullptr;
};

// A text as a JSON string in quotes, all of it ASCII, as Python's json writes it. False: not UTF-8.
bool append_json_string(std::string& out, std::string_view text);

}  // namespace stagelink::kv
