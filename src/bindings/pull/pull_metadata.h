#pragma once

#include <optional>

#include <nanobind/nanobind.h>

#include "connector/pull/pull_types.h"

namespace stagelink::bindings {

// Metadata as vLLM-Omni's connectors pass them on: its seven keys, and `generation`.
nanobind::dict metadata_dict(const pull::PullMetadata& metadata);
// Keys that are not known are left alone. No value for None and for an empty dictionary. Raises
// InvalidArgument, naming the key and its value, for what is of the wrong kind, and for metadata
// without `source_host` or `source_port`.
std::optional<pull::PullMetadata> to_metadata(nanobind::handle metadata);

}  // namespace stagelink::bindings
