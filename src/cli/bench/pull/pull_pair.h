#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/bench/store/store_pair.h"
#include "connector/pull/pull_connector.h"

namespace stagelink::cli::bench {

// A second process with a pull connector of its own, forked; it ends with this.
//
// Thread-safety: one thread at a time.
class PullPair {
 public:
  using Role = std::function<Status(pull::PullConnector&, PairPage&)>;

  // `role` runs in the child with its connector. To be called while this process has no connector.
  static Result<std::unique_ptr<PullPair>> start(const pull::PullOptions& options,
                                                 const Role& role);
  ~PullPair();
  PullPair(const PullPair&) = delete;
  PullPair& operator=(const PullPair&) = delete;

  PairPage& page() noexcept { return process_.page(); }
  pid_t pid() const noexcept { return process_.pid(); }
  // Where its connector is asked.
  pull::PullMetadata address() const;

 private:
  struct Told;
  PullPair(ForkedPair process, Told* told) noexcept;

  ForkedPair process_;
  Told* const told_;
};

// A connector for a measurement: on the loopback address, any free ports.
pull::PullOptions bench_pull_options(pull::Role role, uint64_t pool_bytes);

}  // namespace stagelink::cli::bench
