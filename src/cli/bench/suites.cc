#include "cli/bench/suites.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/encoder_cache/encoder_cache_groups.h"
#include "cli/bench/moriio/moriio_groups.h"
#include "cli/bench/network/network_groups.h"
#include "cli/bench/pull/pull_groups.h"
#include "cli/bench/store/store_groups.h"
#include "cli/bench/suite/groups.h"

namespace stagelink::cli::bench {

namespace {

std::string verdict(const CaseResult& row) {
  if (row.holds()) return "yes";
  return row.limit ? fmt::format("no (streaming memcpy: {:.3f})", *row.limit) : "no";
}

const char* relation_of(Goal goal) noexcept { return goal == Goal::kAtLeast ? ">=" : "<="; }

}  // namespace

Status run_suite(std::string_view name, SuiteContext& context) {
  const std::span<const Group> groups = name == "encoder-cache" ? encoder_cache_groups()
                                        : name == "network"     ? network_groups()
                                        : name == "moriio"      ? moriio_groups()
                                        : name == "store"       ? store_groups()
                                        : name == "pull"        ? pull_groups()
                                                                : engine_groups();
  const std::string& only = context.options().only;
  bool found = false;
  for (const Group& group : groups) {
    if (!only.empty() && only != group.name) continue;
    found = true;
    fmt::print(stderr, "measuring {}\n", group.name);
    const Status status = group.run(context);
    if (!status.ok()) {
      return Status(status.reason(), fmt::format("{}: {}", group.name, status.message()));
    }
  }
  if (found) return Status();
  std::string names;
  for (const Group& group : groups) names += fmt::format(" {}", group.name);
  return Status(Reason::kInvalidArgument, fmt::format("no group {}; there are{}", only, names));
}

std::string rows_as_json(std::span<const CaseResult> rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const CaseResult& row : rows) {
    list.push_back({{"case", row.name},
                    {"value", row.value},
                    {"unit", row.unit},
                    {"relation", relation_of(row.goal)},
                    {"target", row.target},
                    {"holds", row.holds()}});
    if (row.limit) list.back()["limit"] = *row.limit;
  }
  return list.dump(2);
}

std::string rows_as_table(std::span<const CaseResult> rows) {
  std::string out =
      fmt::format("{:<24}{:>12} {:<6}{:>14}  {}\n", "case", "value", "unit", "to reach", "holds");
  for (const CaseResult& row : rows) {
    out += fmt::format("{:<24}{:>12.3f} {:<6}{:>3}{:>11.3f}  {}\n", row.name, row.value, row.unit,
                       relation_of(row.goal), row.target, verdict(row));
  }
  return out;
}

}  // namespace stagelink::cli::bench
