#include "bindings/convert/engine_arguments.h"

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/convert/convert.h"
#include "bindings/convert/index_array.h"
#include "bindings/convert/status_error.h"
#include "config/engine_config.h"
#include "config/store_config.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using config::OptionRow;
using config::OptionType;
using config::OptionValue;

const OptionRow& row_of(const config::OptionTable& table, std::string_view name) {
  const config::OptionAlias* alias = table.find_alias(name);
  const OptionRow* row = table.find(alias == nullptr ? name : alias->name);
  if (row == nullptr) raise(config::unknown_option(table, name));
  return *row;
}

// A value of Python in the form that the table takes: text stays text, numbers become what the type
// of the option makes of them.
OptionValue option_value(const OptionRow& row, nb::handle value) {
  const std::string name(row.name);
  if (PyUnicode_Check(value.ptr()) != 0) return nb::cast<std::string>(value);
  if (PyBool_Check(value.ptr()) != 0) return value.is(Py_True);
  if (row.type == OptionType::kDuration) {
    return fmt::format("{}ns", to_duration(value, name.c_str()).count());
  }
  int64_t number = 0;
  if (nb::try_cast(value, number)) return number;
  std::vector<std::string> list;
  if (row.type == OptionType::kList && nb::try_cast(value, list)) return list;
  raise(Status(Reason::kInvalidArgument,
               fmt::format("{} = {}: expected {}", name, nb::cast<std::string>(nb::repr(value)),
                           config::expected_text(row))));
}

std::string_view python_type(OptionType type) {
  switch (type) {
    case OptionType::kString: return "str";
    case OptionType::kBool: return "bool";
    case OptionType::kInteger: return "int";
    case OptionType::kBytes: return "Size";
    case OptionType::kDuration: return "Timeout";
    case OptionType::kEffort: return "Effort";
    case OptionType::kChoice: return "str";
    case OptionType::kList: return "collections.abc.Sequence[str]";
  }
  return "object";
}

std::string build_signature(const config::OptionTable& table) {
  std::string text = "def __init__(self, config: str | os.PathLike[str] | None = None, *";
  for (const OptionRow& row : table.rows) {
    text += fmt::format(", {}: {} | None = None", row.name, python_type(row.type));
  }
  return text + ") -> None";
}

config::ConfigSources sources_of(nb::handle config) {
  config::ConfigSources sources;
  if (config.is_none()) return sources;
  const nb::object path = nb::steal(PyOS_FSPath(config.ptr()));
  if (!path.is_valid()) throw nb::python_error();
  sources.file = nb::cast<std::string>(path);
  return sources;
}

void apply_keywords(const config::OptionTable& table, const nb::kwargs& keywords, void* options) {
  for (const auto [key, value] : keywords) {
    if (value.is_none()) continue;  // As if it were not given.
    const auto name = nb::cast<std::string>(key);
    check(config::set_named(table, options, name, option_value(row_of(table, name), value)));
  }
}

}  // namespace

EngineOptions engine_options(nb::handle config, const nb::kwargs& keywords) {
  EngineOptions options = unwrap(config::load_engine_options(sources_of(config)));
  apply_keywords(config::engine_option_table(), keywords, &options);
  return options;
}

const char* engine_signature() {
  static const std::string signature = build_signature(config::engine_option_table());
  return signature.c_str();
}

StoreOptions store_options(nb::handle config, const nb::kwargs& keywords) {
  StoreOptions options = unwrap(config::load_store_options(sources_of(config)));
  apply_keywords(config::store_option_table(), keywords, &options);
  return options;
}

const char* store_signature() {
  static const std::string signature = build_signature(config::store_option_table());
  return signature.c_str();
}

}  // namespace stagelink::bindings
