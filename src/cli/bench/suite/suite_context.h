#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/rig/copy_limit.h"
#include "cli/bench/rig/rig.h"
#include "cli/bench/suite/case_result.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

struct SuiteOptions {
  uint32_t repetitions = 20;
  bool pin = true;
  std::string huge_pages = "try";
  std::string only;          // A group's name; empty: all groups.
  std::string peers_python;  // Interpreter that has the peers; empty: looked for.
  std::string python;        // Interpreter that has the stagelink package; empty: looked for.
  std::string scripts_dir;   // The folder bench/ of the sources; empty: looked for.
  std::string trace;         // For the replay; empty: looked for.
};

// What the groups of a suite share: the two processes, the limit, and the rows so far.
//
// Thread-safety: one thread at a time.
class SuiteContext {
 public:
  explicit SuiteContext(SuiteOptions options) noexcept : options_(std::move(options)) {}

  const SuiteOptions& options() const noexcept { return options_; }
  // Made on first use, kept until drop_rig().
  Result<Rig*> rig();
  Result<CopyLimit*> limit();
  // Ends the target process and gives the memory back.
  void drop_rig() noexcept;

  void add(CaseResult row) { rows_.push_back(std::move(row)); }
  const std::vector<CaseResult>& rows() const noexcept { return rows_; }
  // Says on stderr why cases have no row.
  static void leave_out(std::string_view cases, std::string_view why);
  // Says on stderr that a measurement was not as undisturbed as it should be.
  static void warn_if_disturbed(std::string_view name, const Measurement& measurement);

  MeasureOptions measure_options();
  // A file below bench/, if the sources are at hand.
  std::optional<std::string> script(std::string_view relative) const;
  // `relative` below the folder of the sources if it exists there, else `otherwise`.
  std::string beside_sources(std::string_view relative, std::string_view otherwise) const;
  std::string exe() const;

 private:
  const SuiteOptions options_;
  std::unique_ptr<Rig> rig_;
  std::optional<CopyLimit> limit_;
  std::vector<CaseResult> rows_;
};

}  // namespace stagelink::cli::bench
