#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "config/config_node.h"
#include "config/engine_config.h"

// The first byte selects the syntax; the rest is a configuration file. What is accepted must be
// within every range of the table, and must read back from its own text to the same options.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto syntax = data[0] == 'j' ? config::ConfigSyntax::kJson : config::ConfigSyntax::kYaml;
  auto root = config::parse_config(text, syntax, "f");
  if (!root.ok()) return 0;
  EngineOptions options;
  if (!config::apply_config(config::engine_option_table(), *root, "f", &options).ok()) return 0;
  if (!config::check_engine_options(options).ok()) std::abort();

  const std::string written = config::to_text(options);
  auto again = config::parse_config(written, config::ConfigSyntax::kYaml, "again");
  EngineOptions copy;
  if (!again.ok() ||
      !config::apply_config(config::engine_option_table(), *again, "again", &copy).ok() ||
      config::to_text(copy) != written) {
    std::abort();
  }
  return 0;
}
