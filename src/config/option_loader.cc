#include "config/option_loader.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include <fmt/format.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"

namespace stagelink::config {
namespace {

std::string place(std::string_view path, const ConfigNode& node) {
  return fmt::format("{}:{}:{}", path, node.line, node.column);
}

Status at(std::string_view where, const Status& status) {
  if (status.ok()) return status;
  return Status(status.reason(), fmt::format("{}: {}", where, status.message()));
}

std::string variable_name(const OptionTable& table, std::string_view option) {
  std::string out(table.environment);
  for (const char c : option) out += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

std::string_view kind_text(const ConfigNode& node) noexcept {
  switch (node.kind) {
    case ConfigNode::Kind::kScalar: return "a single value";
    case ConfigNode::Kind::kList: return "a list";
    case ConfigNode::Kind::kMap: return "a map";
  }
  return "something else";
}

Result<OptionValue> value_of(const OptionRow& row, const ConfigNode& node) {
  const auto refuse = [&row](std::string_view found) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("{}: expected {}, found {}", row.name, expected_text(row), found));
  };
  if (node.is_null()) return refuse("no value; leave the key out for the default");
  const bool takes_text = row.type == OptionType::kString || row.type == OptionType::kList;
  const auto no_text = [takes_text](const ConfigNode& scalar) {
    return takes_text && scalar.typed && !scalar.quoted;
  };
  if (node.kind == ConfigNode::Kind::kScalar) {
    if (no_text(node)) return refuse("`" + node.text + "`, which is not in quotes");
    return OptionValue(node.text);
  }
  if (node.kind == ConfigNode::Kind::kMap || row.type != OptionType::kList) {
    return refuse(kind_text(node));
  }
  std::vector<std::string> items;
  for (const ConfigNode& item : node.items) {
    if (item.kind != ConfigNode::Kind::kScalar || item.is_null() || no_text(item)) {
      return refuse(fmt::format("an entry in line {} that is no text", item.line));
    }
    items.push_back(item.text);
  }
  return OptionValue(std::move(items));
}

// One run over the sources.
class Loader {
 public:
  Loader(const OptionTable& table, void* options) : table_(table), options_(options) {}

  Status apply_root(const ConfigNode& root, std::string_view path) {
    begin_source();
    if (root.is_null()) return {};
    if (root.kind != ConfigNode::Kind::kMap) {
      return at(place(path, root), Status(Reason::kInvalidArgument,
                                          fmt::format("expected a map with the key `{}`, found {}",
                                                      table_.section, kind_text(root))));
    }
    for (const ConfigEntry& entry : root.entries) {
      if (entry.key.text != table_.section) {
        if (is_section(entry.key.text)) continue;  // Somebody else's.
        return at(place(path, entry.key), not_a_section(entry.key.text));
      }
      SL_TRY(apply_section(entry.value, path));
    }
    return {};
  }

  Status apply_environment() {
    begin_source();
    for (const OptionRow& row : table_.rows) SL_TRY(apply_variable(row.name));
    for (const OptionAlias& alias : table_.aliases) SL_TRY(apply_variable(alias.old_name));
    warn_of_misspelt_variables();
    return {};
  }

  Status apply_arguments(const std::vector<std::string>& arguments) {
    begin_source();
    for (const std::string& argument : arguments) {
      const size_t equals = argument.find('=');
      const std::string where = "--option " + escape_control(argument.substr(0, equals));
      if (equals == std::string::npos) {
        return Status(Reason::kInvalidArgument, where + ": expected name=value");
      }
      SL_TRY(at(where, apply(argument.substr(0, equals), argument.substr(equals + 1))));
    }
    return {};
  }

  Status apply(std::string_view name, const OptionValue& value) {
    const OptionRow* row = nullptr;
    SL_TRY(claim(name, row));
    return set_value(*row, options_, value);
  }

  void begin_source() { given_.clear(); }

 private:
  // Finds the row of a name, once for each source.
  Status claim(std::string_view name, const OptionRow*& row) {
    const OptionAlias* alias = table_.find_alias(name);
    row = table_.find(alias == nullptr ? name : alias->name);
    if (row == nullptr) return unknown_option(table_, name);
    if (const auto [other, fresh] = given_.emplace(row->name, name); !fresh) {
      return Status(Reason::kInvalidArgument,
                    other->second == name
                        ? fmt::format("{}: given twice", name)
                        : fmt::format("{}: given twice, as `{}` too", name, other->second));
    }
    if (alias != nullptr && warned_.insert(alias->old_name).second) {
      log(LogLevel::kWarning, "config",
          fmt::format("option `{}` is deprecated; write `{}`", alias->old_name, alias->name));
    }
    return {};
  }

  static bool is_section(std::string_view name) noexcept {
    const auto sections = known_sections();
    return std::find(sections.begin(), sections.end(), name) != sections.end();
  }

  Status not_a_section(std::string_view name) const {
    if (table_.find(name) != nullptr || table_.find_alias(name) != nullptr) {
      return Status(Reason::kUnknownKey,
                    fmt::format("`{}` stands at the top level; it belongs under `{}:`", name,
                                table_.section));
    }
    const auto sections = known_sections();
    const std::string_view near = nearest_name(name, sections);
    const std::string hint = near.empty()
                                 ? fmt::format("there are `{}`", fmt::join(sections, "`, `"))
                                 : fmt::format("did you mean `{}`?", near);
    return Status(Reason::kUnknownKey, fmt::format("unknown section `{}`; {}",
                                                   escape_control(name.substr(0, 80)), hint));
  }

  Status apply_section(const ConfigNode& section, std::string_view path) {
    if (section.is_null()) return {};
    if (section.kind != ConfigNode::Kind::kMap) {
      return at(place(path, section), Status(Reason::kInvalidArgument,
                                             fmt::format("{}: expected a map of options, found {}",
                                                         table_.section, kind_text(section))));
    }
    for (const ConfigEntry& entry : section.entries) {
      const OptionRow* row = nullptr;
      SL_TRY(at(place(path, entry.key), claim(entry.key.text, row)));
      auto value = value_of(*row, entry.value);
      if (!value.ok()) return at(place(path, entry.value), value.status());
      SL_TRY(at(place(path, entry.value), set_value(*row, options_, *value)));
    }
    return {};
  }

  Status apply_variable(std::string_view name) {
    const std::string variable = variable_name(table_, name);
    const char* text = std::getenv(variable.c_str());
    if (text == nullptr || text[0] == '\0') return {};
    return at(variable, apply(name, std::string(text)));
  }

  // An unknown variable is no error: Kubernetes sets STAGELINK_PORT and others for a service of
  // that name, and other programs may use the prefix. Only what looks like a slip is worth a line.
  void warn_of_misspelt_variables() const {
    std::vector<std::string_view> names;
    for (const OptionRow& row : table_.rows) names.push_back(row.name);
    for (char** item = ::environ; item != nullptr && *item != nullptr; ++item) {
      const std::string_view variable(*item, std::string_view(*item).find('='));
      if (!variable.starts_with(table_.environment)) continue;
      std::string name;
      for (const char c : variable.substr(table_.environment.size())) {
        name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      }
      const bool reserved = name == "config" || name == "log_level";
      if (reserved || table_.find(name) != nullptr || table_.find_alias(name) != nullptr) continue;
      const std::string_view nearest = nearest_name(name, names);
      if (nearest.empty()) continue;
      log(LogLevel::kWarning, "config",
          fmt::format("environment variable {} is no option; did you mean {}?",
                      escape_control(variable.substr(0, 80)), variable_name(table_, nearest)));
    }
  }

  const OptionTable& table_;
  void* options_;
  std::map<std::string, std::string, std::less<>> given_;  // Row name to the name it was given by.
  std::set<std::string_view> warned_;
};

std::string quoted_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;  // Only plain text gets past the table.
  }
  return out + "\"";
}

}  // namespace

Status apply_config(const OptionTable& table, const ConfigNode& root, std::string_view path,
                    void* options) {
  return Loader(table, options).apply_root(root, path);
}

Status load_options(const OptionTable& table, const ConfigSources& sources, void* options) {
  Loader loader(table, options);
  std::string file = sources.file;
  if (file.empty() && sources.environment) {
    const char* named = std::getenv("STAGELINK_CONFIG");
    if (named != nullptr) file = named;
  }
  if (!file.empty()) {
    SL_ASSIGN(const ConfigNode root, read_config_file(file));
    SL_TRY(loader.apply_root(root, file));
  }
  if (sources.environment) SL_TRY(loader.apply_environment());
  return loader.apply_arguments(sources.arguments);
}

Status set_named(const OptionTable& table, void* options, std::string_view name,
                 const OptionValue& value) {
  return Loader(table, options).apply(name, value);
}

std::string options_text(const OptionTable& table, const void* options) {
  std::string out = fmt::format("{}:\n", table.section);
  std::string_view group;
  for (const OptionRow& row : table.rows) {
    if (row.group != group) out += fmt::format("  # {}\n", row.group);
    group = row.group;
    if (row.secret) {
      out += fmt::format("  # {} is secret\n", row.name);
      continue;
    }
    const std::string text = value_text(row, options);
    const bool quote = row.type == OptionType::kString || row.type == OptionType::kChoice;
    const bool list = row.type == OptionType::kList;
    out += fmt::format("  {}: {}\n", row.name,
                       quote  ? quoted_text(text)
                       : list ? "[" + text + "]"
                              : text);
  }
  return out;
}

}  // namespace stagelink::config
