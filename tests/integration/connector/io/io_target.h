#pragma once

#include <optional>
#include <string>

#include "connector/moriio/io/io_engine.h"
#include "integration/support/child_process.h"
#include "integration/support/engine_test.h"

namespace stagelink::test {

struct IoTargetSetup {
  EngineOptions options;  // `name` is the key.
  uint16_t port = 0;
  moriio::BackendType backend = moriio::BackendType::kRdma;
  bool allocated = true;  // Memory that can be mapped; else registered.
  uint64_t bytes = 1 << 20;
  uint64_t seed = 0;  // Of the pattern it is filled with.
};

// An IO engine in another process that has registered one memory and then does nothing by itself.
class IoTarget {
 public:
  explicit IoTarget(const IoTargetSetup& setup);

  ChildProcess& process() noexcept { return process_; }
  const moriio::EngineDesc& engine() const noexcept { return engine_; }
  const moriio::MemoryDesc& memory() const noexcept { return memory_; }

  // Waits for a notice of this transfer. Nothing if none comes while the patience lasts.
  std::optional<moriio::StatusCode> pop(const std::string& key, uint64_t id);
  // Without waiting.
  bool has_notice(const std::string& key, uint64_t id);
  // Position of the first byte of the memory's range that is not of this pattern.
  std::optional<size_t> first_wrong(uint64_t offset, uint64_t bytes, uint64_t seed);

 private:
  std::string ask(const std::string& question);

  ChildProcess process_;
  moriio::EngineDesc engine_;
  moriio::MemoryDesc memory_;
};

}  // namespace stagelink::test
