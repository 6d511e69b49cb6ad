#include "config/config_node.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "base/text.h"
#include "base/unique_fd.h"

namespace stagelink::config {
namespace {

// Owns a parser and its current event.
class YamlEvents {
 public:
  explicit YamlEvents(std::string_view text) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    if (text.data() == nullptr) text = "";  // libyaml asserts that there is a pointer.
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  ~YamlEvents() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  YamlEvents(const YamlEvents&) = delete;
  YamlEvents& operator=(const YamlEvents&) = delete;

  bool next() noexcept {
    yaml_event_delete(&event_);
    return yaml_parser_parse(&parser_, &event_) != 0;
  }
  const yaml_event_t& event() const noexcept { return event_; }
  // After next() gave false.
  std::string problem() const {
    return parser_.problem == nullptr ? "unreadable" : parser_.problem;
  }
  yaml_mark_t problem_mark() const noexcept {
    return parser_.error == YAML_READER_ERROR ? parser_.mark : parser_.problem_mark;
  }

 private:
  yaml_parser_t parser_{};
  yaml_event_t event_{};
};

class Parser {
 public:
  Parser(std::string_view text, ConfigSyntax syntax, std::string_view name)
      : events_(text), name_(name), typed_(syntax == ConfigSyntax::kJson) {}

  Result<ConfigNode> parse_document() {
    ConfigNode root;
    root.kind = ConfigNode::Kind::kMap;
    root.line = 1;
    root.column = 1;
    SL_TRY(advance());  // Stream start.
    SL_TRY(advance());
    if (type() == YAML_STREAM_END_EVENT) return root;
    SL_TRY(advance());  // Past the document start.
    SL_TRY(parse_node(root, 0));
    SL_TRY(advance());  // Document end.
    SL_TRY(advance());
    if (type() != YAML_STREAM_END_EVENT) {
      return failure(events_.event().start_mark, "a second document; a file holds one");
    }
    return root;
  }

 private:
  yaml_event_type_t type() const noexcept { return events_.event().type; }

  Status failure(const yaml_mark_t& mark, std::string_view what,
                 Reason reason = Reason::kInvalidArgument) const {
    return Status(reason, fmt::format("{}:{}:{}: {}", name_, mark.line + 1, mark.column + 1, what));
  }

  Status advance() {
    if (events_.next()) return {};
    return failure(events_.problem_mark(), escape_control(events_.problem()));
  }

  // The current event begins the node; at the end the current event is its last one.
  Status parse_node(ConfigNode& out, size_t depth) {
    const yaml_mark_t mark = events_.event().start_mark;
    out.line = mark.line + 1;
    out.column = mark.column + 1;
    if (++nodes_ > kMaxConfigNodes) {
      return failure(mark, fmt::format("more than {} values", kMaxConfigNodes), Reason::kTooLarge);
    }
    if (depth > kMaxConfigDepth) {
      return failure(mark, fmt::format("nested deeper than {}", kMaxConfigDepth),
                     Reason::kTooLarge);
    }
    switch (type()) {
      case YAML_SCALAR_EVENT: return parse_scalar(out);
      case YAML_SEQUENCE_START_EVENT: return parse_list(out, depth);
      case YAML_MAPPING_START_EVENT: return parse_map(out, depth);
      case YAML_ALIAS_EVENT: return failure(mark, "aliases (`*name`) are not taken");
      default: return failure(mark, "a value is missing");
    }
  }

  Status parse_scalar(ConfigNode& out) {
    const auto& scalar = events_.event().data.scalar;
    SL_TRY(refuse_properties(scalar.anchor, scalar.tag));
    out.kind = ConfigNode::Kind::kScalar;
    out.text.assign(reinterpret_cast<const char*>(scalar.value), scalar.length);
    out.quoted = scalar.style != YAML_PLAIN_SCALAR_STYLE;
    out.typed = typed_;
    return {};
  }

  Status parse_list(ConfigNode& out, size_t depth) {
    const auto& list = events_.event().data.sequence_start;
    SL_TRY(refuse_properties(list.anchor, list.tag));
    out.kind = ConfigNode::Kind::kList;
    for (;;) {
      SL_TRY(advance());
      if (type() == YAML_SEQUENCE_END_EVENT) return {};
      ConfigNode item;
      SL_TRY(parse_node(item, depth + 1));
      out.items.push_back(std::move(item));
    }
  }

  Status parse_map(ConfigNode& out, size_t depth) {
    const auto& map = events_.event().data.mapping_start;
    SL_TRY(refuse_properties(map.anchor, map.tag));
    out.kind = ConfigNode::Kind::kMap;
    for (;;) {
      SL_TRY(advance());
      if (type() == YAML_MAPPING_END_EVENT) return {};
      const yaml_mark_t mark = events_.event().start_mark;
      ConfigEntry entry;
      SL_TRY(parse_node(entry.key, depth + 1));
      if (entry.key.kind != ConfigNode::Kind::kScalar) return failure(mark, "a key must be a word");
      SL_TRY(refuse_duplicate(out, entry.key, mark));
      SL_TRY(advance());
      SL_TRY(parse_node(entry.value, depth + 1));
      out.entries.push_back(std::move(entry));
    }
  }

  Status refuse_duplicate(const ConfigNode& map, const ConfigNode& key,
                          const yaml_mark_t& mark) const {
    for (const ConfigEntry& other : map.entries) {
      if (other.key.text != key.text) continue;
      return failure(mark, fmt::format("duplicate key `{}`; the first stands in line {}",
                                       escape_control(key.text.substr(0, 80)), other.key.line));
    }
    return {};
  }

  Status refuse_properties(const yaml_char_t* anchor, const yaml_char_t* tag) const {
    const yaml_mark_t mark = events_.event().start_mark;
    if (anchor != nullptr) return failure(mark, "anchors (`&name`) are not taken");
    if (tag == nullptr) return {};
    const std::string text(reinterpret_cast<const char*>(tag));
    return failure(
        mark, fmt::format("tags are not taken, found `{}`", escape_control(text.substr(0, 80))));
  }

  YamlEvents events_;
  std::string_view name_;
  bool typed_;
  size_t nodes_ = 0;
};

// Every JSON document is read through the YAML events, which give places; but first it must be JSON
// and nothing more.
Status check_json(std::string_view text, std::string_view name) {
  struct Handler final : nlohmann::json_sax<nlohmann::json> {
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(int64_t) override { return true; }
    bool number_unsigned(uint64_t) override { return true; }
    bool number_float(double, const std::string&) override { return true; }
    bool string(std::string&) override { return true; }
    bool binary(nlohmann::json::binary_t&) override { return true; }
    bool start_object(size_t) override { return ++depth <= kMaxConfigDepth + 1; }
    bool key(std::string&) override { return true; }
    bool end_object() override { return --depth, true; }
    bool start_array(size_t) override { return ++depth <= kMaxConfigDepth + 1; }
    bool end_array() override { return --depth, true; }
    bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& e) override {
      position = at;
      problem = e.what();
      return false;
    }
    size_t depth = 0;
    size_t position = 0;
    std::string problem;
  };
  Handler handler;
  if (nlohmann::json::sax_parse(text, &handler)) return {};
  if (handler.problem.empty()) {
    return Status(Reason::kTooLarge,
                  fmt::format("{}: nested deeper than {}", name, kMaxConfigDepth));
  }
  const std::string_view before = text.substr(0, handler.position == 0 ? 0 : handler.position - 1);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
  // The library's text begins with its own name and position.
  const size_t cut = handler.problem.find("syntax error");
  return Status(
      Reason::kInvalidArgument,
      fmt::format("{}:{}:{}: not JSON: {}", name, line, column,
                  escape_control(handler.problem.substr(cut == std::string::npos ? 0 : cut))));
}

Status file_failure(const std::string& path, const char* what, int error) {
  Reason reason = Reason::kSystem;
  if (error == ENOENT || error == ENOTDIR) reason = Reason::kNotFound;
  if (error == EACCES || error == EPERM) reason = Reason::kPermission;
  if (error == EMFILE || error == ENFILE) reason = Reason::kNofile;
  return Status(reason, fmt::format("{}: cannot {}: {}", path, what, std::strerror(error)));
}

}  // namespace

bool ConfigNode::is_null() const noexcept {
  return kind == Kind::kScalar && !quoted && (text.empty() || text == "~" || text == "null");
}

const ConfigEntry* ConfigNode::find(std::string_view name) const noexcept {
  const auto at = std::find_if(entries.begin(), entries.end(),
                               [name](const ConfigEntry& entry) { return entry.key.text == name; });
  return at == entries.end() ? nullptr : &*at;
}

Result<ConfigNode> parse_config(std::string_view text, ConfigSyntax syntax, std::string_view name) {
  if (text.size() > kMaxConfigBytes) {
    return Status(Reason::kTooLarge,
                  fmt::format("{}: longer than {} bytes", name, kMaxConfigBytes));
  }
  if (syntax == ConfigSyntax::kJson) {
    // A file of white space only sets nothing, like an empty YAML file.
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) text = {};
    if (!text.empty()) SL_TRY(check_json(text, name));
  }
  return Parser(text, syntax, name).parse_document();
}

Result<ConfigNode> read_config_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return file_failure(path, "open", errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return file_failure(path, "stat", errno);
  if (!S_ISREG(info.st_mode)) return Status(Reason::kInvalidArgument, path + ": not a plain file");
  std::string text(kMaxConfigBytes + 1, '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t count = ::read(fd.get(), text.data() + got, text.size() - got);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_failure(path, "read", errno);
    if (count == 0) break;
    got += static_cast<size_t>(count);
  }
  text.resize(got);
  const bool json = path.ends_with(".json");
  return parse_config(text, json ? ConfigSyntax::kJson : ConfigSyntax::kYaml, path);
}

}  // namespace stagelink::config
