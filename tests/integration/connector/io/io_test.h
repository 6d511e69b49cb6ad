#pragma once

#include <memory>
#include <string>
#include <vector>

#include "integration/connector/io/io_target.h"

namespace stagelink::test {

// Offsets and sizes that live as long as the test needs them.
struct IoBatch {
  std::vector<uint64_t> local;
  std::vector<uint64_t> remote;
  std::vector<uint64_t> sizes;
  moriio::IoRanges ranges() const { return {local, remote, sizes}; }
};

// An IO engine in this process with one registered memory, and a target in another.
class IoTest : public EngineTest {
 protected:
  static constexpr uint64_t kBytes = 1 << 20;

  // A stopped target is not taken for a lost one within a test.
  EngineOptions io_options(const std::string& name) const {
    EngineOptions options = this->options(name);
    options.heartbeat_interval = 10s;
    return options;
  }
  IoTargetSetup target_setup(moriio::BackendType backend) const {
    return {.options = io_options("target"), .backend = backend, .bytes = kBytes, .seed = seed()};
  }
  static std::unique_ptr<moriio::IoEngine> make_io_engine(const EngineOptions& options) {
    return must(moriio::IoEngine::create(options.name, {.host = "127.0.0.1", .engine = options}));
  }
  static moriio::MemoryDesc register_all(moriio::IoEngine& engine, const PrivateMemory& memory) {
    return must(
        engine.register_memory(memory.data(), memory.size(), -1, moriio::MemoryLocation::kCpu));
  }
};

// All of it, ready to transfer.
struct IoPair {
  IoPair(std::unique_ptr<moriio::IoEngine> engine_, const IoTargetSetup& setup)
      : target(setup), memory(setup.bytes), engine(std::move(engine_)) {
    if (!engine->create_backend(setup.backend).ok()) throw std::runtime_error("no backend");
    if (!engine->register_remote_engine(target.engine()).ok()) throw std::runtime_error("no peer");
    local = must(
        engine->register_memory(memory.data(), memory.size(), -1, moriio::MemoryLocation::kCpu));
    session = must(engine->create_session(local, target.memory()));
  }

  IoTarget target;
  PrivateMemory memory;
  std::unique_ptr<moriio::IoEngine> engine;
  moriio::MemoryDesc local;
  std::shared_ptr<moriio::IoSession> session;
};

}  // namespace stagelink::test
