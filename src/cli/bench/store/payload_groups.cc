#include <array>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/bench/store/store_groups.h"
#include "cli/bench/store/store_script.h"

namespace stagelink::cli::bench {
namespace {

// What bench/serializer.py prints, and what it has to be.
struct PayloadCase {
  const char* printed;
  const char* name;
  const char* unit;
  Goal goal;
  double target;
};

constexpr std::array kPayloadCases = {
    PayloadCase{"encode_x", "encode", "x", Goal::kAtLeast, 8},
    PayloadCase{"decode_x", "decode", "x", Goal::kAtLeast, 50},
    PayloadCase{"encode_memcpy", "encode-memcpy", "x", Goal::kAtLeast, 0.8},
    PayloadCase{"fast_encode_memcpy", "encode-fast-memcpy", "x", Goal::kAtLeast, 0.8},
    PayloadCase{"fast_put_get_memcpy", "dict-put-get", "x", Goal::kAtMost, 2.5},
    PayloadCase{"small_put_get_us", "dict-put-get-small", "us", Goal::kAtMost, 1000},
};

}  // namespace

Status run_store_payload_group(SuiteContext& context) {
  std::string python = context.beside_sources("build/omni-venv/bin/python", "");
  if (python.empty()) python = store_python(context);
  const auto printed = numbers_of(context, "encode decode dict-put-get", "serializer.py", python);
  if (!printed.is_object()) return Status();
  for (const PayloadCase& c : kPayloadCases) {
    if (!printed.contains(c.printed)) {
      SuiteContext::leave_out(c.name, "needs torch and vLLM-Omni in build/omni-venv");
      continue;
    }
    context.add({.name = c.name,
                 .value = printed[c.printed].get<double>(),
                 .unit = c.unit,
                 .goal = c.goal,
                 .target = c.target});
  }
  return Status();
}

}  // namespace stagelink::cli::bench
