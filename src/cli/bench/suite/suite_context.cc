#include "cli/bench/suite/suite_context.h"

#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace stagelink::cli::bench {

namespace fs = std::filesystem;

Result<Rig*> SuiteContext::rig() {
  if (!rig_) {
    RigOptions options;
    options.pin = options_.pin;
    options.huge_pages = options_.huge_pages;
    SL_ASSIGN(rig_, Rig::create(options));
  }
  return rig_.get();
}

Result<CopyLimit*> SuiteContext::limit() {
  if (!limit_) {
    SL_ASSIGN(CopyLimit limit, CopyLimit::create());
    limit_.emplace(std::move(limit));
  }
  return &*limit_;
}

void SuiteContext::drop_rig() noexcept {
  rig_.reset();
  limit_.reset();
}

void SuiteContext::leave_out(std::string_view cases, std::string_view why) {
  fmt::print(stderr, "left out: {}: {}\n", cases, why);
}

void SuiteContext::warn_if_disturbed(std::string_view name, const Measurement& measurement) {
  if (measurement.quiet) return;
  fmt::print(stderr, "{}: the machine was busy, all repetitions were kept\n", name);
}

MeasureOptions SuiteContext::measure_options() {
  MeasureOptions options;
  options.repetitions = options_.repetitions;
  options.target = rig_ ? rig_->target().pid() : -1;
  return options;
}

std::string SuiteContext::exe() const {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).string();
}

std::optional<std::string> SuiteContext::script(std::string_view relative) const {
  if (!options_.scripts_dir.empty()) {
    return (fs::path(options_.scripts_dir) / relative).string();
  }
  const std::string path = beside_sources(fmt::format("bench/{}", relative), "");
  return path.empty() ? std::nullopt : std::optional(path);
}

std::string SuiteContext::beside_sources(std::string_view relative,
                                         std::string_view otherwise) const {
  // The working folder, or that of build/<preset>/stagelink.
  const std::array<fs::path, 2> folders = {fs::path("."),
                                           fs::path(exe()).parent_path() / ".." / ".."};
  for (const fs::path& folder : folders) {
    std::error_code ignored;
    const fs::path path = fs::absolute(folder / relative).lexically_normal();
    if (fs::exists(path, ignored)) return path.string();
  }
  return std::string(otherwise);
}

}  // namespace stagelink::cli::bench
