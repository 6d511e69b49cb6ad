#pragma once

#include <string>

#include "config/config_node.h"

namespace stagelink::cli {

struct PipelineCheck {
  std::string file;
  std::string platform;
  bool json = false;
};

// Whether a file speaks of a pipeline of stages rather than of an engine.
bool is_pipeline(const config::ConfigNode& root) noexcept;

// Prints the edges of a pipeline, resolved, and the ports of its senders. An exit code.
int check_pipeline(const PipelineCheck& arguments);

}  // namespace stagelink::cli
