#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "connector/omni_config/config_json.h"
#include "connector/omni_config/ports.h"
#include "connector/omni_config/transfer_config.h"

// The first byte selects the syntax; the rest is a pipeline. What is accepted must keep its
// promises: an edge has two stages that are there, no port is given twice, and the resolved form
// reads back.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto syntax = data[0] == 'j' ? config::ConfigSyntax::kJson : config::ConfigSyntax::kYaml;
  auto tree = omni::parse_config_tree(text, syntax, "f", "npu");
  if (!tree.ok()) return 0;
  auto config = omni::parse_transfer_config(*tree);
  if (!config.ok()) return 0;
  for (const omni::Edge& edge : config->edges) {
    int found = 0;
    for (const omni::Stage& stage : config->stages) {
      found += stage.id == edge.from || stage.id == edge.to ? 1 : 0;
    }
    if (found != 2 || config->find_edge(edge.from, edge.to) != &edge) std::abort();
  }
  auto json = omni::transfer_config_json(*config);
  if (!json.ok()) return 0;  // A port too high, or given twice.
  auto again = omni::transfer_config_of_json(*json);
  if (!again.ok() || again->edges.size() != config->edges.size()) std::abort();
  for (const omni::Stage& stage : config->stages) {
    auto before = omni::stage_json(*config, stage.id);
    auto after = omni::stage_json(*again, stage.id);
    if (before.ok() != after.ok() || (before.ok() && *before != *after)) std::abort();
  }
  return 0;
}
