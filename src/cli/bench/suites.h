#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/bench/suite/case_result.h"
#include "cli/bench/suite/suite_context.h"
#include "stagelink/status.h"

namespace stagelink::cli::bench {

// Runs the groups of a suite (or the one that the options name) and reports each group's name on
// stderr as it starts. Errors: invalid_argument (no such suite or group), and the failure of a
// group together with its name; the rows so far stay in `context`.
Status run_suite(std::string_view name, SuiteContext& context);

// A list of {"case", "value", "unit", "relation", "target", "holds"}, with "limit" where a row has
// one.
std::string rows_as_json(std::span<const CaseResult> rows);
std::string rows_as_table(std::span<const CaseResult> rows);

}  // namespace stagelink::cli::bench
