#include "cli/replay/workload/layout.h"

#include <bit>

#include <fmt/format.h>

#include "cli/replay/workload/trace.h"

namespace stagelink::cli::replay {

Result<Layout> make_layout(const ModelGeometry& model, uint32_t layers, uint32_t element_bytes,
                           uint32_t block_tokens) {
  if (!std::has_single_bit(block_tokens) || block_tokens > kTokensPerId) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("--block-tokens: {} is not a power of two from 1 to {}", block_tokens,
                              kTokensPerId));
  }
  if (layers == 0 || layers > model.layers) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("{} layers asked for, {} has {}", layers, model.name, model.layers));
  }
  const uint32_t vector_bytes = model.vector_elements * element_bytes;
  if (vector_bytes % sizeof(uint64_t) != 0) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("a vector of {} elements of {} bytes is no multiple of 8 bytes",
                              model.vector_elements, element_bytes));
  }
  return Layout{layers, model.parts, model.heads, vector_bytes, block_tokens, 0};
}

}  // namespace stagelink::cli::replay
