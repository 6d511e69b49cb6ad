#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "engine/batch/copy_pool.h"
#include "engine/batch/plan.h"
#include "engine/batch/transfer_state.h"
#include "engine/inbox.h"
#include "engine/progress.h"
#include "memory/copy_kernel.h"
#include "memory/region_registry.h"
#include "metrics/engine_metrics.h"
#include "stagelink/engine_options.h"
#include "transport/fault/fault_injector.h"
#include "wire/auth.h"
#include "wire/hello.h"

namespace stagelink::engine {

class Acceptor;
class InboundPeer;
class PeerState;
class StreamHost;
enum class Carrier : uint8_t;

// What one engine is made of, and its life. The parts do the work; this file only joins them.
//
// Thread-safety: all public methods may run at the same time, except where noted.
class EngineCore : public std::enable_shared_from_this<EngineCore> {
 public:
  static Result<std::shared_ptr<EngineCore>> create(EngineOptions options);
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // Ok, or invalid_state: closed or forked.
  Status usable() const;
  // A call that comes while another one closes waits for it; all have the same answer.
  Status close(const Deadline& deadline) SL_EXCLUDES(close_mutex_);

  Result<std::shared_ptr<memory::RegionRecord>> allocate(size_t bytes,
                                                         const memory::SegmentOptions& options);
  Result<std::shared_ptr<memory::RegionRecord>> add_memory(void* address, size_t bytes,
                                                           Access access);
  // Deregisters: on success nobody touches the memory any more. Errors: busy (reader_inside).
  Status retire_region(const std::shared_ptr<memory::RegionRecord>& record,
                       const Deadline& deadline);
  // Takes over a region whose owner could not wait any longer; the timer tries again.
  void adopt_retired(std::shared_ptr<memory::RegionRecord> record);

  std::vector<std::byte> descriptor() const;
  std::string address() const;
  // The answer to `hello`.
  wire::Welcome welcome(const wire::Hello& hello) const;

  const EngineOptions& options() const noexcept { return options_; }
  InstanceId instance() const noexcept { return instance_; }
  InstanceId host() const noexcept { return host_; }
  uint64_t fork_token() const noexcept { return fork_token_; }
  const PlanLimits& plan_limits() const noexcept { return plan_limits_; }
  bool enabled(transport::TransportKind kind) const noexcept {
    return enabled_[static_cast<size_t>(kind)];
  }
  metrics::EngineMetrics& metrics() const noexcept { return *metrics_; }
  memory::RegionRegistry& registry() const noexcept { return *registry_; }
  ProgressLoop& loop() const noexcept { return *loop_; }
  Inbox& inbox() const noexcept { return *inbox_; }
  StreamHost& stream_host() const noexcept { return *stream_host_; }
  TransferPool& transfers() noexcept { return transfers_; }
  CopyPool& copies() noexcept { return copies_; }
  const memory::CopyKernel& kernel() const noexcept { return kernel_; }
  // Null unless the options ask for faults.
  const std::shared_ptr<transport::FaultInjector>& faults() const noexcept { return faults_; }

  // Null: peers need not prove anything.
  const wire::AuthKey* auth_key() const noexcept { return auth_key_ ? &*auth_key_ : nullptr; }
  // Not with a secret: cma reaches memory without asking its owner.
  bool may_use_cma() const noexcept {
    return enabled(transport::TransportKind::kCma) && auth_key() == nullptr;
  }

  // One log line and one counter for a failure, at its origin.
  void report(const std::string& what, const Status& status) const;
  // Runs `work` on the progress loop and waits for its answer.
  Status call_on_loop(std::function<Status()> work, const Deadline& deadline);
  // The copying transport of a session's view, with faults if the options ask for them. Null if no
  // region of it is copied.
  std::unique_ptr<transport::CopyTransport> make_copier(PeerState& peer, const SessionView& view);

  // --- Peers. ---
  // Errors: invalid_state (closed).
  Status add_peer(std::shared_ptr<PeerState> peer) SL_EXCLUDES(peers_mutex_);
  void remove_peer(const PeerState& peer) SL_EXCLUDES(peers_mutex_);
  void end_transfers_of(const PeerState& peer, const Status& why);
  // Makes the progress loop tick this peer soon, and again until it is content.
  void attend(std::shared_ptr<PeerState> peer) SL_EXCLUDES(peers_mutex_);
  // Progress loop only.
  void remove_inbound(const InboundPeer& peer);
  void pause_accepting() noexcept;

 private:
  explicit EngineCore(EngineOptions options);
  Status open();
  void offer_cma();
  Status load_secret();
  Status start();
  Duration tick();
  void greet(UniqueFd fd, Carrier carrier, const wire::Hello& hello);
  bool connected(InstanceId instance) const;
  void retry_retired() SL_EXCLUDES(retired_mutex_);
  Status wait_for_readers(const memory::RegionRecord& record, uint64_t epoch,
                          const Deadline& deadline);
  std::vector<std::shared_ptr<PeerState>> peers() const SL_EXCLUDES(peers_mutex_);
  // True while one of them wants to be ticked soon.
  bool tick_peers(bool heartbeat) SL_EXCLUDES(peers_mutex_);
  void forget_local(const memory::RegionRecord& record);
  Status close_all(const Deadline& deadline);
  Status await_close(const Deadline& deadline) SL_EXCLUDES(close_mutex_);
  Status close_regions(const Deadline& deadline);
  void shut_down_loop();

  const EngineOptions options_;
  const uint64_t fork_token_;
  const InstanceId instance_;
  const InstanceId host_;
  const PlanLimits plan_limits_;
  const memory::CopyKernel kernel_;
  bool enabled_[transport::kTransportKinds] = {};
  std::string runtime_dir_;
  std::string advertised_;
  std::optional<wire::AuthKey> auth_key_;

  std::unique_ptr<metrics::EngineMetrics> metrics_;
  std::shared_ptr<transport::FaultInjector> faults_;
  std::unique_ptr<memory::RegionRegistry> registry_;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<ProgressLoop> loop_;
  TransferPool transfers_;
  CopyPool copies_;
  std::atomic<bool> closed_{false};
  Mutex close_mutex_;
  CondVar close_ended_;
  std::optional<Status> close_outcome_ SL_GUARDED_BY(close_mutex_);

  // Progress loop only (and close(), once the loop has ended).
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<StreamHost> stream_host_;
  std::vector<std::unique_ptr<InboundPeer>> inbound_;
  std::chrono::steady_clock::time_point next_heartbeat_;
  std::chrono::steady_clock::time_point resume_accepting_;
  bool accepting_paused_ = false;

  mutable Mutex peers_mutex_;
  std::vector<std::shared_ptr<PeerState>> peers_ SL_GUARDED_BY(peers_mutex_);
  std::vector<std::shared_ptr<PeerState>> attended_ SL_GUARDED_BY(peers_mutex_);
  Mutex retired_mutex_;
  std::vector<std::shared_ptr<memory::RegionRecord>> retired_ SL_GUARDED_BY(retired_mutex_);
  std::atomic<bool> retired_waits_{false};
};

}  // namespace stagelink::engine
