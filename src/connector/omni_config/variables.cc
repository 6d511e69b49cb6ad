#include "connector/omni_config/variables.h"

#include <cstdlib>

#include <fmt/format.h>

#include "base/text.h"

namespace stagelink::omni {

Result<std::string> expand_variable(std::string_view text) {
  if (!text.starts_with('$')) return std::string(text);
  std::string name(text.substr(1));
  if (name.starts_with('{') && name.ends_with('}')) name = name.substr(1, name.size() - 2);
  const char* value = std::getenv(name.c_str());
  if (value != nullptr && *value != '\0') return std::string(value);
  return Status(Reason::kInvalidArgument, fmt::format("the environment variable {} is not set",
                                                      escape_control(name.substr(0, 80))));
}

}  // namespace stagelink::omni
