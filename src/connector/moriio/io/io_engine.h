#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "connector/moriio/io/inbound_table.h"
#include "connector/moriio/io/io_session.h"

namespace stagelink::moriio {

// One of the transfers of IoEngine::batch_read(): a batch between two memories.
struct IoTransfer {
  const MemoryDesc& local;
  const MemoryDesc& remote;
  IoRanges ranges;
  uint64_t id = 0;
};

// mori's IOEngine over ours: memory, remote engines, sessions and transfers under the names and
// with the descriptors of mori. Transfers are one-sided: the target does nothing during them.
//
// Thread-safety: all methods may run at the same time.
class IoEngine {
 public:
  // Binds at once. Errors: invalid_argument (an empty key, or one that is not plain text of at most
  // 256 bytes); those of Engine::create.
  static Result<std::unique_ptr<IoEngine>> create(std::string key, const IoEngineConfig& config);
  ~IoEngine();
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;

  // RDMA stands for whatever reaches the peer best, TCP for tcp alone. A second one of a type
  // replaces the first for new sessions. Errors: invalid_argument (unsupported) names the backends
  // that are not there; invalid_state if other transports than those so far are asked for when
  // memory or remote engines are in use.
  Status create_backend(BackendType type, const BackendConfig& config = {}) SL_EXCLUDES(mutex_);
  // Its sessions fail from now on. Errors: not_found.
  Status remove_backend(BackendType type) SL_EXCLUDES(mutex_);

  EngineDesc engine_desc() const SL_EXCLUDES(mutex_);
  // Known from now on under its key; connected when first needed. The same key with another address
  // or process replaces the one before. Errors: invalid_argument, limit (too_many_peers).
  Status register_remote_engine(const EngineDesc& desc) SL_EXCLUDES(mutex_);
  // Ends its sessions. Errors: not_found.
  Status deregister_remote_engine(const EngineDesc& desc) SL_EXCLUDES(mutex_);

  // Memory that peers on this host map and copy directly, as long as somebody holds it.
  Result<std::shared_ptr<Region>> allocate(size_t bytes, const AllocateOptions& options = {})
      SL_EXCLUDES(mutex_);
  // Memory of the caller, who keeps it valid until it is deregistered; or a range of allocated
  // memory, which peers then reach as such. Overlaps are allowed. Errors: invalid_argument (null, 0
  // bytes; unsupported: GPU memory), limit.
  Result<MemoryDesc> register_memory(void* address, size_t bytes, int32_t device_id,
                                     MemoryLocation location) SL_EXCLUDES(mutex_);
  // Errors: not_registered; busy (reader_inside).
  Status deregister_memory(const MemoryDesc& desc) SL_EXCLUDES(mutex_);

  uint64_t allocate_transfer_uid() noexcept { return shared_->next_uid.fetch_add(1); }

  // Errors: invalid_state (no backend, closed), not_registered, not_found (remote engine),
  // superseded (stale descriptor), corrupt; those of Engine::connect and Peer::session.
  Result<std::shared_ptr<IoSession>> create_session(const MemoryDesc& local,
                                                    const MemoryDesc& remote) SL_EXCLUDES(mutex_);
  // One status for each transfer, in their order. Sessions are made when they are needed, and kept.
  std::vector<StatusRef> batch_read(std::span<const IoTransfer> transfers) SL_EXCLUDES(mutex_);
  std::vector<StatusRef> batch_write(std::span<const IoTransfer> transfers) SL_EXCLUDES(mutex_);

  // How a transfer ended that the engine `key` has begun under `id`: once for each such transfer,
  // then nothing again.
  std::optional<StatusRef> pop_inbound_transfer_status(std::string_view key, uint64_t id)
      SL_EXCLUDES(mutex_);

  // Ends everything; idempotent. Errors: those of Engine::close.
  Status close(Duration timeout = std::chrono::seconds(5)) SL_EXCLUDES(mutex_);
  std::string metrics_text() const SL_EXCLUDES(mutex_);

 private:
  // Local memory, remote engine, remote memory.
  using CacheKey = std::tuple<uint32_t, std::string, uint32_t>;
  IoEngine(std::string key, EngineOptions options, std::shared_ptr<Engine> engine);

  std::shared_ptr<Engine> engine() const SL_EXCLUDES(mutex_);
  Status use_transports(std::vector<std::string> transports) SL_REQUIRES(mutex_);
  std::shared_ptr<IoBackend> backend() const SL_EXCLUDES(mutex_);
  Result<std::shared_ptr<RemoteEngine>> remote_engine(const std::string& key) const
      SL_EXCLUDES(mutex_);
  Status look_up(const MemoryDesc& local, IoSession::Parts& parts) const SL_EXCLUDES(mutex_);
  Result<std::shared_ptr<IoSession>> cached_session(const MemoryDesc& local,
                                                    const MemoryDesc& remote) SL_EXCLUDES(mutex_);
  using Start = StatusRef (IoSession::*)(const IoRanges&, uint64_t);
  std::vector<StatusRef> start_all(Start start, std::span<const IoTransfer> transfers);

  const std::shared_ptr<IoShared> shared_;
  MemoryTable memory_;
  InboundTable inbound_;

  mutable Mutex mutex_;
  EngineOptions options_ SL_GUARDED_BY(mutex_);
  std::shared_ptr<Engine> engine_ SL_GUARDED_BY(mutex_);
  bool closed_ SL_GUARDED_BY(mutex_) = false;
  std::map<BackendType, std::shared_ptr<IoBackend>> backends_ SL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<RemoteEngine>, std::less<>> remotes_ SL_GUARDED_BY(mutex_);
  std::map<CacheKey, std::shared_ptr<IoSession>> cache_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::moriio
