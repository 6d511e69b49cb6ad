#pragma once

#include <span>
#include <string_view>

namespace stagelink::omni {

// The connectors that vLLM-Omni gives roles and ports.
bool is_transfer_engine(std::string_view connector) noexcept;
// Those of them that are ours: they pull from the sender.
bool is_pull_connector(std::string_view connector) noexcept;
// Ours that pass through a store: they honour the bounds of an edge.
bool is_store_connector(std::string_view connector) noexcept;
// Those of vLLM-Omni and ours. Others may be registered; a name that is nearly one of these is a
// slip.
std::span<const std::string_view> connector_names() noexcept;

}  // namespace stagelink::omni
