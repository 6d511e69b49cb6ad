#pragma once

#include <string>
#include <string_view>

#include "config/option_loader.h"
#include "config/option_table.h"
#include "stagelink/result.h"
#include "stagelink/store_options.h"

namespace stagelink::config {

// The options of an object store: section `store` in files, STAGELINK_STORE_<NAME> in the
// environment.
const OptionTable& store_option_table() noexcept;

Result<StoreOptions> load_store_options(const ConfigSources& sources);

// For options that were filled in by code. Errors: invalid_argument names option, value and range.
Status check_store_options(const StoreOptions& options);

}  // namespace stagelink::config
