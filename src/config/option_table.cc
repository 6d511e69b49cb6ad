#include "config/option_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <type_traits>

#include <fmt/format.h>

#include "base/text.h"

namespace stagelink::config {
namespace {

constexpr std::array<std::string_view, 3> kEfforts = {"off", "try", "require"};

Status wrong(const OptionRow& row, std::string_view value, std::string_view why = {}) {
  const std::string shown =
      row.secret ? std::string("(secret)") : "`" + escape_control(value.substr(0, 80)) + "`";
  return Status(Reason::kInvalidArgument,
                fmt::format("{}: {} is not {}{}{}", row.name, shown, expected_text(row),
                            why.empty() ? "" : ": ", row.secret ? std::string_view{} : why));
}

bool in_range(const OptionRow& row, uint64_t value) noexcept {
  return value <= static_cast<uint64_t>(row.max) &&
         (row.min <= 0 || value >= static_cast<uint64_t>(row.min));
}
bool in_range(const OptionRow& row, int64_t value) noexcept {
  return value >= row.min && value <= row.max;
}

constexpr std::string_view kNotPlain =
    "it is not UTF-8, or holds control characters, line separators, byte order marks or "
    "non-characters";

Status check_string(const OptionRow& row, std::string_view text) {
  if (!is_plain_text(text)) return wrong(row, text, kNotPlain);
  if (!in_range(row, static_cast<uint64_t>(text.size()))) return wrong(row, text);
  if (row.check == nullptr || text.empty()) return {};
  const Status status = row.check(text);
  return status.ok() ? status : wrong(row, text, status.message());
}

Status check_list(const OptionRow& row, const std::vector<std::string>& list) {
  std::set<std::string_view> seen;
  for (const std::string& entry : list) {
    const bool known = row.choices.empty() || std::find(row.choices.begin(), row.choices.end(),
                                                        entry) != row.choices.end();
    if (!known || entry.empty()) return wrong(row, entry);
    if (!is_plain_text(entry)) return wrong(row, entry, kNotPlain);
    if (!seen.insert(entry).second) return wrong(row, entry, "it stands in the list twice");
  }
  if (!in_range(row, static_cast<uint64_t>(list.size()))) {
    return wrong(row, fmt::format("{}", fmt::join(list, ",")),
                 fmt::format("it has {} entries", list.size()));
  }
  return {};
}

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> out;
  if (trimmed(text).empty()) return out;
  for (size_t comma = 0; comma != std::string_view::npos;) {
    comma = text.find(',');
    out.emplace_back(trimmed(text.substr(0, comma)));
    if (comma != std::string_view::npos) text.remove_prefix(comma + 1);
  }
  return out;
}

std::string shown(const OptionValue& value) {
  struct Show {
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(const std::vector<std::string>& list) const {
      return fmt::format("[{}]", fmt::join(list, ", "));
    }
  };
  return std::visit(Show{}, value);
}

template <typename T>
Status store_integer(const OptionRow& row, T* field, int64_t number) {
  if (!in_range(row, number)) return wrong(row, fmt::format("{}", number));
  *field = static_cast<T>(number);  // The row's range lies within T.
  return {};
}

// One overload for each type of field.
struct Setter {
  const OptionRow& row;
  const OptionValue& value;

  const std::string* text() const noexcept { return std::get_if<std::string>(&value); }
  Status mistyped() const { return wrong(row, shown(value)); }

  Status operator()(std::string* field) const {
    if (text() == nullptr) return mistyped();
    SL_TRY(check_string(row, *text()));
    *field = *text();
    return {};
  }
  Status operator()(bool* field) const {
    if (const bool* flag = std::get_if<bool>(&value)) {
      *field = *flag;
      return {};
    }
    if (text() == nullptr) return mistyped();
    const auto flag = parse_bool(*text());
    if (!flag.ok()) return mistyped();
    *field = *flag;
    return {};
  }
  Status operator()(int32_t* field) const { return set_integer(field); }
  Status operator()(uint32_t* field) const { return set_integer(field); }
  Status operator()(uint64_t* field) const { return set_integer(field); }
  Status operator()(uint16_t* field) const { return set_integer(field); }
  Status operator()(ChoiceField field) const {
    if (text() == nullptr) return mistyped();
    const auto found = std::find(row.choices.begin(), row.choices.end(), *text());
    if (found == row.choices.end()) return mistyped();
    *field.value = static_cast<uint8_t>(found - row.choices.begin());
    return {};
  }
  Status operator()(Duration* field) const {
    if (const int64_t* number = std::get_if<int64_t>(&value)) {
      return wrong(row, fmt::format("{}", *number), "a duration needs a unit: ns us ms s min h");
    }
    if (text() == nullptr) return mistyped();
    auto duration = parse_duration(*text());
    if (!duration.ok()) return wrong(row, *text(), duration.status().message());
    if (!in_range(row, int64_t{duration->count()})) return mistyped();
    *field = *duration;
    return {};
  }
  Status operator()(Effort* field) const {
    // A YAML reader of the caller's (PyYAML) turns `off` into False.
    if (const bool* flag = std::get_if<bool>(&value); flag != nullptr && !*flag) {
      *field = Effort::kOff;
      return {};
    }
    if (text() == nullptr) return mistyped();
    const auto found = std::find(kEfforts.begin(), kEfforts.end(), *text());
    if (found == kEfforts.end()) return mistyped();
    *field = static_cast<Effort>(found - kEfforts.begin());
    return {};
  }
  Status operator()(std::vector<std::string>* field) const {
    const auto* given = std::get_if<std::vector<std::string>>(&value);
    if (given == nullptr && text() == nullptr) return mistyped();
    std::vector<std::string> list = given != nullptr ? *given : split_list(*text());
    SL_TRY(check_list(row, list));
    *field = std::move(list);
    return {};
  }

 private:
  template <typename T>
  Status set_integer(T* field) const {
    if (const int64_t* number = std::get_if<int64_t>(&value)) {
      return store_integer(row, field, *number);
    }
    if (text() == nullptr) return mistyped();
    if (row.type == OptionType::kBytes) {
      const auto bytes = parse_bytes(*text());
      if (!bytes.ok()) return wrong(row, *text(), bytes.status().message());
      if (!in_range(row, *bytes)) return mistyped();
      *field = static_cast<T>(*bytes);
      return {};
    }
    const auto number = parse_integer(*text());
    if (!number.ok()) return mistyped();
    return store_integer(row, field, *number);
  }
};

std::string format_count(const OptionRow& row, int64_t value) {
  if (row.type == OptionType::kBytes) return format_bytes(static_cast<uint64_t>(value));
  if (row.type == OptionType::kDuration) return format_duration(Duration(value));
  return fmt::format("{}", value);
}

struct Formatter {
  const OptionRow& row;

  std::string operator()(const std::string* field) const { return *field; }
  std::string operator()(const bool* field) const { return *field ? "true" : "false"; }
  std::string operator()(const Duration* field) const { return format_duration(*field); }
  std::string operator()(const Effort* field) const {
    const auto index = static_cast<size_t>(*field);
    return index < kEfforts.size() ? std::string(kEfforts[index]) : fmt::format("{}", index);
  }
  std::string operator()(const std::vector<std::string>* field) const {
    return fmt::format("{}", fmt::join(*field, ","));
  }
  std::string operator()(ChoiceField field) const {
    return *field.value < row.choices.size() ? std::string(row.choices[*field.value])
                                             : fmt::format("{}", *field.value);
  }
  template <typename T>
  std::string operator()(const T* field) const {
    return row.type == OptionType::kBytes ? format_bytes(static_cast<uint64_t>(*field))
                                          : fmt::format("{}", *field);
  }
};

struct Checker {
  const OptionRow& row;

  Status operator()(const std::string* field) const { return check_string(row, *field); }
  Status operator()(const bool*) const { return {}; }
  Status operator()(const Duration* field) const { return range(int64_t{field->count()}); }
  Status operator()(const Effort* field) const {
    return static_cast<size_t>(*field) < kEfforts.size() ? Status() : out_of_range();
  }
  Status operator()(const std::vector<std::string>* field) const { return check_list(row, *field); }
  Status operator()(ChoiceField field) const {
    return *field.value < row.choices.size() ? Status() : out_of_range();
  }
  Status operator()(const int32_t* field) const { return range(int64_t{*field}); }
  Status operator()(const uint16_t* field) const { return range(uint64_t{*field}); }
  Status operator()(const uint32_t* field) const { return range(uint64_t{*field}); }
  Status operator()(const uint64_t* field) const { return range(*field); }

 private:
  template <typename T>
  Status range(T value) const {
    return in_range(row, value) ? Status() : wrong(row, fmt::format("{}", value));
  }
  Status out_of_range() const { return wrong(row, "(out of range)"); }
};

// The accessors take void*, because they also serve the setter; formatting only reads.
OptionField field_of_const(const OptionRow& row, const void* options) {
  return row.field(const_cast<void*>(options));
}

}  // namespace

std::span<const std::string_view> known_sections() noexcept {
  static constexpr std::array<std::string_view, 2> kSections = {"engine", "store"};
  return kSections;
}

const OptionRow* OptionTable::find(std::string_view name) const noexcept {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [name](const OptionRow& row) { return row.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

const OptionAlias* OptionTable::find_alias(std::string_view name) const noexcept {
  const auto found = std::find_if(aliases.begin(), aliases.end(), [name](const OptionAlias& alias) {
    return alias.old_name == name;
  });
  return found == aliases.end() ? nullptr : &*found;
}

Status set_value(const OptionRow& row, void* options, const OptionValue& value) {
  return std::visit(Setter{row, value}, row.field(options));
}

std::string value_text(const OptionRow& row, const void* options) {
  return std::visit(Formatter{row}, field_of_const(row, options));
}

Status check_value(const OptionRow& row, const void* options) {
  return std::visit(Checker{row}, field_of_const(row, options));
}

std::string expected_text(const OptionRow& row) {
  switch (row.type) {
    case OptionType::kBool: return "one of true, false, yes, no, on, off";
    case OptionType::kEffort: return fmt::format("one of {}", fmt::join(kEfforts, ", "));
    case OptionType::kList:
      return fmt::format("a list of {} to {} of: {}", row.min, row.max,
                         fmt::join(row.choices, ", "));
    case OptionType::kChoice: return fmt::format("one of {}", fmt::join(row.choices, ", "));
    case OptionType::kString: return fmt::format("a text of {} to {} bytes", row.min, row.max);
    case OptionType::kInteger:
    case OptionType::kBytes:
    case OptionType::kDuration: break;
  }
  const std::string_view kind = row.type == OptionType::kInteger ? "an integer"
                                : row.type == OptionType::kBytes ? "a size"
                                                                 : "a duration";
  if (row.max == std::numeric_limits<int64_t>::max()) {
    return fmt::format("{} of at least {}", kind, format_count(row, row.min));
  }
  return fmt::format("{} from {} to {}", kind, format_count(row, row.min),
                     format_count(row, row.max));
}

std::string_view type_name(OptionType type) noexcept {
  switch (type) {
    case OptionType::kString: return "string";
    case OptionType::kBool: return "boolean";
    case OptionType::kInteger: return "integer";
    case OptionType::kBytes: return "size";
    case OptionType::kDuration: return "duration";
    case OptionType::kEffort: return "effort";
    case OptionType::kList: return "list";
    case OptionType::kChoice: return "choice";
  }
  return "unknown";
}

Status unknown_option(const OptionTable& table, std::string_view name) {
  std::vector<std::string_view> names;
  for (const OptionRow& row : table.rows) names.push_back(row.name);
  const std::string_view nearest = nearest_name(name, names);
  return Status(Reason::kUnknownKey,
                fmt::format("unknown option `{}`{}", escape_control(name.substr(0, 80)),
                            nearest.empty() ? "" : fmt::format("; did you mean `{}`?", nearest)));
}

}  // namespace stagelink::config
