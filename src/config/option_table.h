#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::config {

// An enumeration of one byte whose values count from 0, by the names of a row's `choices`.
struct ChoiceField {
  uint8_t* value;
};

// The field of an options struct that a row speaks of.
using OptionField = std::variant<std::string*, bool*, int32_t*, uint32_t*, uint64_t*, uint16_t*,
                                 Duration*, Effort*, std::vector<std::string>*, ChoiceField>;

enum class OptionType : uint8_t {
  kString,
  kBool,
  kInteger,
  kBytes,
  kDuration,
  kEffort,
  kList,
  kChoice,
};

struct OptionRow {
  std::string_view name;
  OptionType type = OptionType::kString;
  std::string_view group;                         // Heading in the docs.
  std::string_view text;                          // One or two sentences.
  OptionField (*field)(void* options) = nullptr;  // Of the struct that the table is for.
  // Both included: the value of an integer or a size, the nanoseconds of a duration, the length of
  // a string, the entries of a list.
  int64_t min = 0;
  int64_t max = 0;
  std::span<const std::string_view> choices{};       // Of a list's entries (empty: any), a choice.
  Status (*check)(std::string_view text) = nullptr;  // Further check of a string that is not empty.
  bool secret = false;                               // Its value is never printed.
};

// A name of former times: it works and warns once, naming its successor.
struct OptionAlias {
  std::string_view old_name;
  std::string_view name;
};

// One row for each option of one struct. Everything that reads, writes or describes options goes
// through it.
//
// Thread-safety: immutable.
struct OptionTable {
  std::string_view section;      // Its key in files.
  std::string_view environment;  // Prefix of the variables: STAGELINK_
  std::span<const OptionRow> rows;
  std::span<const OptionAlias> aliases;

  const OptionRow* find(std::string_view name) const noexcept;  // Null: no such option.
  const OptionAlias* find_alias(std::string_view name) const noexcept;
};

// The field of `Member` in an options struct behind a void*.
template <typename T>
OptionField as_field(T& field) noexcept {
  if constexpr (std::is_enum_v<T> && !std::is_same_v<T, Effort>) {
    static_assert(sizeof(T) == 1);
    return ChoiceField{reinterpret_cast<uint8_t*>(&field)};
  } else {
    return &field;
  }
}
template <typename Struct, typename T>
OptionField field_in(void* options, T Struct::*member) noexcept {
  return as_field(static_cast<Struct*>(options)->*member);
}
template <auto Member>
OptionField field_of(void* options) noexcept {
  return field_in(options, Member);
}
// `Member` of the struct that is `Part` of the options.
template <typename Struct, typename Inner, typename T>
OptionField field_within(void* options, Inner Struct::*part, T Inner::*member) noexcept {
  return as_field(static_cast<Struct*>(options)->*part.*member);
}
template <auto Part, auto Member>
OptionField field_of(void* options) noexcept {
  return field_within(options, Part, Member);
}

// One scalar as text, or a value that already has a type (JSON, Python).
using OptionValue = std::variant<std::string, bool, int64_t, std::vector<std::string>>;

// Stores `value` in the row's field of `options`, or leaves it alone and says what is expected.
// Text is read by the row's type; a typed value must be of the row's type, but an integer is also
// a size in bytes. Errors: invalid_argument names option, value and what is expected.
Status set_value(const OptionRow& row, void* options, const OptionValue& value);
// As set_value reads it back: "64KiB", "500ms", "shm,unix".
std::string value_text(const OptionRow& row, const void* options);
// Whether the field, however it was set, holds a value that set_value would take.
Status check_value(const OptionRow& row, const void* options);
// "size, 4KiB to 1GiB": type, range and choices for messages and docs.
std::string expected_text(const OptionRow& row);
std::string_view type_name(OptionType type) noexcept;

// What a file may hold beside each other: "engine", "store".
std::span<const std::string_view> known_sections() noexcept;

// unknown_key, with the nearest name of the table.
Status unknown_option(const OptionTable& table, std::string_view name);

}  // namespace stagelink::config
