#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config_node.h"
#include "stagelink/result.h"

namespace stagelink::omni {

// A pipeline's configuration together with what it inherits, as one tree. Every node knows the file
// it comes from.
struct ConfigTree {
  config::ConfigNode root;         // A map.
  std::vector<std::string> files;  // By ConfigNode::file.

  // "pipeline.yaml:12:3".
  std::string place(const config::ConfigNode& node) const;
  Status failure(const config::ConfigNode& node, std::string_view what,
                 Reason reason = Reason::kInvalidArgument) const;
};

// The file and its ancestors.
inline constexpr size_t kMaxConfigFiles = 8;

// Reads a file and, where it names a `base_config`, that one under it: what the file says wins, key
// by key in `connectors` and `runtime`, stage by stage (by `stage_id`) in `stages`, `stage_args`
// and `platforms`. The overrides of `platform` are applied last; empty: none. Errors: those of
// config::read_config_file; invalid_argument for any other end of the name than .yaml .yml .json,
// for a chain that is too long or closed, and for sections of the wrong kind.
Result<ConfigTree> read_config_tree(const std::string& path, std::string_view platform = {});

// The same for a text, which cannot inherit.
Result<ConfigTree> parse_config_tree(std::string_view text, config::ConfigSyntax syntax,
                                     std::string_view name, std::string_view platform = {});

}  // namespace stagelink::omni
