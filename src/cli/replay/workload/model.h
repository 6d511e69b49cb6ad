#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "stagelink/result.h"

namespace stagelink::cli::replay {

// What the KV cache of a model looks like: per layer and token, `parts` (K and V, or one latent)
// times `heads` vectors of `vector_elements`.
struct ModelGeometry {
  std::string_view name;
  uint32_t layers;
  uint32_t parts;
  uint32_t heads;
  uint32_t vector_elements;
  std::string_view dtype;  // As published.
};

// In the order of `--help`.
std::span<const ModelGeometry> known_models();
// Errors: not_found names all that are known.
Result<ModelGeometry> find_model(std::string_view name);

// Errors: invalid_argument names the known types.
Result<uint32_t> dtype_bytes(std::string_view dtype);

// How many of `layers` to keep: "1/32", "0.5", "1" (all). Errors: invalid_argument unless the share
// is above 0 and at most 1. At least one layer stays.
Result<uint32_t> scaled_layers(uint32_t layers, const std::string& scale);

}  // namespace stagelink::cli::replay
