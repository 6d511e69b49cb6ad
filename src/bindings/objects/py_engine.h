#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <nanobind/nanobind.h>

#include "bindings/convert/python_memory.h"
#include "bindings/objects/closed_at_exit.h"
#include "stagelink/engine.h"

namespace stagelink::bindings {

// An Engine as Python sees it: closed by the garbage collector, and at interpreter exit if nobody
// did before.
//
// Thread-safety: used with the interpreter lock.
class PyEngine final : public ClosedAtExit {
 public:
  explicit PyEngine(std::unique_ptr<Engine> engine);
  ~PyEngine() override;
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

  Engine& engine() const noexcept { return *engine_; }
  Status close(std::optional<Duration> timeout);
  void close_at_exit() override;
  // Keeps memory until the engine is closed: of a region that was dropped while a peer was inside.
  void adopt(PythonMemory memory) { adopted_.push_back(std::move(memory)); }

 private:
  std::unique_ptr<Engine> engine_;
  std::vector<PythonMemory> adopted_;
};

}  // namespace stagelink::bindings
