#pragma once

#include <atomic>
#include <memory>

#include "base/mutex.h"
#include "connector/moriio/io/engine_desc.h"
#include "stagelink/engine.h"

namespace stagelink::moriio {

// A remote engine by its key, as registered once: where it is, and the connection to its present
// life, made when it is first needed.
//
// Thread-safety: all methods may run at the same time.
class RemoteEngine {
 public:
  explicit RemoteEngine(EngineDesc desc) noexcept : desc_(std::move(desc)) {}

  const EngineDesc& desc() const noexcept { return desc_; }

  // Connected to the life `instance` of that engine. Connects again if the one that was known is
  // another. Errors: superseded if the engine is another one by now, so that descriptors of that
  // life are stale; invalid_state once dropped; those of Engine::connect.
  Result<std::shared_ptr<Peer>> peer(Engine& engine, InstanceId instance) SL_EXCLUDES(mutex_);

  // Ends the connection and all its sessions, for good.
  void drop() SL_EXCLUDES(mutex_);
  bool dropped() const noexcept { return dropped_.load(); }

 private:
  const EngineDesc desc_;
  std::atomic<bool> dropped_{false};
  Mutex mutex_;  // Held while connecting, so that one thread does.
  std::shared_ptr<Peer> peer_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::moriio
