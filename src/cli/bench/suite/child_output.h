#pragma once

#include <string>
#include <vector>

#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

// Runs a program with its standard output caught and waits for its end. It may run on all cores
// that this process was started with, wherever the caller is pinned.
// Errors: not_found (cannot be started), timed_out (it is killed), system (its exit status).
Result<std::string> run_child(std::vector<std::string> words, Duration timeout);

}  // namespace stagelink::cli::bench
