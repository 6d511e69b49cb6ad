#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/result.h"

namespace stagelink::block_layout {

// What must be equal on both sides, as text by field name: model, dtype, block_size, layout,
// attn_backend, isa, kv_heads, head_dim, layers, protocol, tp_size. Fields that only one side has
// are of another minor version and do not count.
using Description = std::map<std::string, std::string>;

// Fields that may differ: they are for people, or each side copes.
bool may_differ(std::string_view field) noexcept;

// One line for each field that differs: "block_size: ours 16, theirs 24". tp_size differs only if
// neither divides the other.
std::vector<std::string> differences(const Description& ours, const Description& theirs);
// ok, or incompatible with those lines joined by "; ".
Status check_compatible(const Description& ours, const Description& theirs);

// 16 hex digits over the fields that must be equal: equal descriptions have equal hashes on every
// machine. tp_size is left out, as sizes that differ may still fit.
std::string compat_hash(const Description& description);

}  // namespace stagelink::block_layout
