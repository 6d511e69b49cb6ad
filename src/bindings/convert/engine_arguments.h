#pragma once

#include <nanobind/nanobind.h>

#include "stagelink/engine_options.h"
#include "stagelink/store_options.h"

namespace stagelink::bindings {

// The options of an engine from the arguments of stagelink.Engine: a path or None, and keywords
// with the names of the option table. Raises InvalidArgument; for an unknown keyword with the
// nearest name there is.
EngineOptions engine_options(nanobind::handle config, const nanobind::kwargs& keywords);

// The signature of stagelink.Engine with every option of the table by name and type.
const char* engine_signature();

// The same for stagelink.ObjectStore.
StoreOptions store_options(nanobind::handle config, const nanobind::kwargs& keywords);
const char* store_signature();

}  // namespace stagelink::bindings
