#include "connector/omni_config/config_tree.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <fmt/format.h>

#include "base/text.h"

namespace stagelink::omni {
namespace {

using config::ConfigEntry;
using config::ConfigNode;
using Kind = ConfigNode::Kind;

// Of a stage, what is merged key by key; other keys are replaced.
constexpr std::array<std::string_view, 5> kMergedStageKeys = {
    "default_sampling_params", "default_pooling_params", "subtalker_sampling_params",
    "engine_extras", "engine_args"};

void set_file(ConfigNode& node, uint32_t file) {
  node.file = file;
  for (ConfigNode& item : node.items) set_file(item, file);
  for (ConfigEntry& entry : node.entries) {
    entry.key.file = file;
    set_file(entry.value, file);
  }
}

ConfigNode* find_value(ConfigNode& map, std::string_view name) {
  const ConfigEntry* entry = map.find(name);
  return entry == nullptr ? nullptr : const_cast<ConfigNode*>(&entry->value);
}

void replace_value(ConfigNode& map, const ConfigEntry& entry) {
  ConfigNode* value = find_value(map, entry.key.text);
  if (value == nullptr) {
    map.entries.push_back(entry);
  } else {
    *value = entry.value;
  }
}

// What both have as maps is merged, anything else of `over` wins.
void merge_maps(ConfigNode& base, const ConfigNode& over) {
  for (const ConfigEntry& entry : over.entries) {
    ConfigNode* value = find_value(base, entry.key.text);
    if (value != nullptr && value->kind == Kind::kMap && entry.value.kind == Kind::kMap) {
      merge_maps(*value, entry.value);
    } else {
      replace_value(base, entry);
    }
  }
}

void merge_stage(ConfigNode& base, const ConfigNode& over) {
  for (const ConfigEntry& entry : over.entries) {
    ConfigNode* value = find_value(base, entry.key.text);
    const bool merged =
        std::ranges::find(kMergedStageKeys, entry.key.text) != kMergedStageKeys.end();
    if (merged && value != nullptr && value->kind == Kind::kMap && entry.value.kind == Kind::kMap) {
      merge_maps(*value, entry.value);
    } else {
      replace_value(base, entry);
    }
  }
}

class TreeMerger {
 public:
  explicit TreeMerger(const ConfigTree& tree) : tree_(tree) {}

  // Lays the file `over` upon `base`.
  Status lay_over(ConfigNode& base, const ConfigNode& over) const {
    for (const ConfigEntry& entry : over.entries) {
      ConfigNode* value = find_value(base, entry.key.text);
      const std::string& name = entry.key.text;
      if (value == nullptr) {
        base.entries.push_back(entry);
      } else if (name == "connectors" || name == "runtime") {
        SL_TRY(check_kind(*value, Kind::kMap, name));
        SL_TRY(check_kind(entry.value, Kind::kMap, name));
        merge_maps(*value, entry.value);
      } else if (name == "stages" || name == "stage_args") {
        SL_TRY(merge_stages(*value, entry.value, name));
      } else if (name == "platforms") {
        SL_TRY(merge_platforms(*value, entry.value));
      } else {
        *value = entry.value;
      }
    }
    return {};
  }

  Status apply_platform(ConfigNode& root, std::string_view platform) const {
    const ConfigNode* platforms = find_value(root, "platforms");
    if (platforms == nullptr || platform.empty()) return {};
    SL_TRY(check_kind(*platforms, Kind::kMap, "platforms"));
    const ConfigEntry* section = platforms->find(platform);
    if (section == nullptr) return refuse_near_platform(*platforms, platform);
    SL_TRY(check_kind(section->value, Kind::kMap, section->key.text));
    const ConfigEntry* stages = section->value.find("stages");
    if (stages == nullptr) return {};
    ConfigNode* base = find_value(root, "stages");
    if (base == nullptr) return {};
    // Only stages that there are: a platform adds none.
    SL_TRY(check_kind(stages->value, Kind::kList, "stages"));
    SL_TRY(check_kind(*base, Kind::kList, "stages"));
    for (const ConfigNode& over : stages->value.items) {
      SL_ASSIGN(ConfigNode * stage, find_stage(*base, over));
      if (stage != nullptr) merge_stage(*stage, over);
    }
    return {};
  }

 private:
  Status check_kind(const ConfigNode& node, Kind kind, std::string_view name) const {
    if (node.kind == kind) return {};
    return tree_.failure(node, fmt::format("`{}` must be a {}", escape_control(name),
                                           kind == Kind::kMap ? "map" : "list"));
  }

  // The stage of `stages` with the id of `like`; null: there is none.
  Result<ConfigNode*> find_stage(ConfigNode& stages, const ConfigNode& like) const {
    SL_ASSIGN(const std::string id, stage_id(like));
    for (ConfigNode& stage : stages.items) {
      SL_ASSIGN(const std::string other, stage_id(stage));
      if (other == id) return &stage;
    }
    return static_cast<ConfigNode*>(nullptr);
  }

  Result<std::string> stage_id(const ConfigNode& stage) const {
    SL_TRY(check_kind(stage, Kind::kMap, "a stage"));
    const ConfigEntry* id = stage.find("stage_id");
    if (id == nullptr) return tree_.failure(stage, "a stage without `stage_id`");
    return id->value.text;
  }

  Status merge_stages(ConfigNode& base, const ConfigNode& over, std::string_view name) const {
    SL_TRY(check_kind(base, Kind::kList, name));
    SL_TRY(check_kind(over, Kind::kList, name));
    for (const ConfigNode& stage : over.items) {
      SL_ASSIGN(ConfigNode * known, find_stage(base, stage));
      if (known == nullptr) {
        base.items.push_back(stage);
      } else {
        merge_stage(*known, stage);
      }
    }
    return {};
  }

  Status merge_platforms(ConfigNode& base, const ConfigNode& over) const {
    SL_TRY(check_kind(base, Kind::kMap, "platforms"));
    SL_TRY(check_kind(over, Kind::kMap, "platforms"));
    for (const ConfigEntry& platform : over.entries) {
      ConfigNode* known = find_value(base, platform.key.text);
      if (known == nullptr) {
        base.entries.push_back(platform);
        continue;
      }
      SL_TRY(check_kind(*known, Kind::kMap, platform.key.text));
      SL_TRY(check_kind(platform.value, Kind::kMap, platform.key.text));
      SL_TRY(lay_over(*known, platform.value));
    }
    return {};
  }

  // A platform without a section has no overrides; but a slip is told.
  Status refuse_near_platform(const ConfigNode& platforms, std::string_view platform) const {
    std::vector<std::string_view> names;
    for (const ConfigEntry& entry : platforms.entries) names.push_back(entry.key.text);
    const std::string_view near = nearest_name(platform, names);
    if (near.empty()) return {};
    return tree_.failure(platforms, fmt::format("no platform `{}`; did you mean `{}`?",
                                                escape_control(platform), escape_control(near)));
  }

  const ConfigTree& tree_;
};

bool has_config_suffix(std::string_view path) noexcept {
  return path.ends_with(".yaml") || path.ends_with(".yml") || path.ends_with(".json");
}

// Reads `path` and its ancestors, nearest first.
Status read_chain(std::string path, ConfigTree& tree, std::vector<ConfigNode>& chain) {
  for (;;) {
    if (!has_config_suffix(path)) {
      return Status(Reason::kInvalidArgument,
                    fmt::format("{}: unsupported config file format; a name ends in .yaml, .yml or "
                                ".json",
                                escape_control(path)));
    }
    SL_ASSIGN(ConfigNode root, config::read_config_file(path));
    set_file(root, static_cast<uint32_t>(tree.files.size()));
    tree.files.push_back(path);
    if (root.is_null()) root.kind = Kind::kMap;
    if (root.kind != Kind::kMap) return tree.failure(root, "a file holds a map");
    const ConfigEntry* base = root.find("base_config");
    if (base == nullptr) {
      chain.push_back(std::move(root));
      return {};
    }
    const ConfigNode name = base->value;
    if (name.kind != Kind::kScalar || name.text.empty() || name.is_null()) {
      return tree.failure(name, "`base_config` must be the name of a file");
    }
    if (tree.files.size() == kMaxConfigFiles) {
      return tree.failure(name,
                          fmt::format("`base_config` leads through more than {} files; it may "
                                      "lead in a circle",
                                      kMaxConfigFiles));
    }
    std::erase_if(root.entries, [](const ConfigEntry& e) { return e.key.text == "base_config"; });
    chain.push_back(std::move(root));
    path = (std::filesystem::path(path).parent_path() / name.text).string();
  }
}

}  // namespace

std::string ConfigTree::place(const ConfigNode& node) const {
  const std::string_view file = node.file < files.size() ? files[node.file] : std::string_view("?");
  return fmt::format("{}:{}:{}", file, node.line, node.column);
}

Status ConfigTree::failure(const ConfigNode& node, std::string_view what, Reason reason) const {
  return Status(reason, fmt::format("{}: {}", place(node), what));
}

Result<ConfigTree> read_config_tree(const std::string& path, std::string_view platform) {
  ConfigTree tree;
  std::vector<ConfigNode> chain;
  SL_TRY(read_chain(path, tree, chain));
  const TreeMerger merger(tree);
  ConfigNode root = std::move(chain.back());
  for (auto over = chain.rbegin() + 1; over != chain.rend(); ++over) {
    SL_TRY(merger.lay_over(root, *over));
  }
  SL_TRY(merger.apply_platform(root, platform));
  tree.root = std::move(root);
  return tree;
}

Result<ConfigTree> parse_config_tree(std::string_view text, config::ConfigSyntax syntax,
                                     std::string_view name, std::string_view platform) {
  ConfigTree tree;
  tree.files.emplace_back(name);
  SL_ASSIGN(ConfigNode root, config::parse_config(text, syntax, name));
  if (root.is_null()) root.kind = Kind::kMap;
  if (root.kind != Kind::kMap) return tree.failure(root, "a configuration is a map");
  if (const ConfigEntry* base = root.find("base_config")) {
    return tree.failure(base->key, "`base_config` needs a file that it is relative to");
  }
  SL_TRY(TreeMerger(tree).apply_platform(root, platform));
  tree.root = std::move(root);
  return tree;
}

}  // namespace stagelink::omni
