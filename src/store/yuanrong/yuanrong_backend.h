#pragma once

#include <memory>

#include "stagelink/result.h"
#include "stagelink/store_options.h"
#include "store/backend.h"

namespace stagelink::store::yuanrong {

// The Yuanrong Datasystem, through the broker of its worker. Errors: not_found (the package is
// missing; the message names the command that installs it), incompatible (version), unreachable,
// permission (authentication), invalid_argument.
Result<std::shared_ptr<Backend>> make_yuanrong_backend(const StoreOptions& options);

}  // namespace stagelink::store::yuanrong
