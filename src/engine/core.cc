#include "engine/core.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fork_guard.h"
#include "base/host_id.h"
#include "base/log.h"
#include "base/random.h"
#include "base/runtime_dir.h"
#include "base/secret_file.h"
#include "base/unique_fd.h"
#include "config/engine_config.h"
#include "engine/advertised_address.h"
#include "engine/bind_address.h"
#include "engine/link/acceptor.h"
#include "engine/link/inbound_peer.h"
#include "engine/link/peer_state.h"
#include "engine/link/stream_link.h"
#include "wire/engine_desc.h"

namespace stagelink::engine {
namespace {

using Clock = std::chrono::steady_clock;

// While something waits for the timer (handshakes, full rings, a stream's deadlines, readers inside
// retired regions), it looks this often.
constexpr Duration kBusyTick = std::chrono::milliseconds(5);
constexpr Duration kAcceptPause = std::chrono::milliseconds(200);
constexpr int kDirTries = 100;

EngineOptions named(EngineOptions options) {
  if (options.name.empty()) options.name = "engine-" + std::to_string(::getpid());
  return options;
}

bool has_name(const UniqueFd& dir) noexcept {
  struct stat info {};
  return ::fstat(dir.get(), &info) == 0 && info.st_nlink > 0;
}

// The runtime directory, and our first entry in it. Until that is there, another engine that closes
// may remove the directory.
Result<std::string> enter_runtime_dir(const EngineOptions& options, const InstanceId& instance,
                                      std::unique_ptr<metrics::EngineMetrics>& metrics) {
  for (int tries = 1;; ++tries) {
    auto found = runtime_dir(options.runtime_dir);
    if (found.status().reason() == Reason::kNotFound && tries < kDirTries) continue;
    SL_ASSIGN(std::string path, std::move(found));
    const UniqueFd dir(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    const int error = errno;
    reclaim_dead_entries(path);
    metrics = metrics::EngineMetrics::create(path, options.name, instance);
    if (tries == kDirTries || (dir && has_name(dir)) || (!dir && error != ENOENT)) return path;
  }
}

}  // namespace

EngineCore::EngineCore(EngineOptions options)
    : options_(named(std::move(options))),
      fork_token_(ForkGuard::arm()),
      instance_(random_instance_id()),
      host_(host_id()),
      plan_limits_{options_.slice_bytes, options_.max_ranges, options_.cma_min_run},
      kernel_(memory::pick_copy_kernel(options_.streaming_min_bytes)),
      transfers_(options_.max_transfers),
      copies_(options_.copy_threads) {}

Result<std::shared_ptr<EngineCore>> EngineCore::create(EngineOptions options) {
  SL_TRY(config::check_engine_options(options));
  std::shared_ptr<EngineCore> core(new EngineCore(std::move(options)));
  Status status = core->open();
  if (status.ok()) status = core->start();
  if (!status.ok()) {
    (void)core->close(Deadline::in(Duration::zero()));
    return status;
  }
  return core;
}

EngineCore::~EngineCore() = default;  // The engine's own handle, or create(), has closed it.

Status EngineCore::load_secret() {
  if (options_.secret_file.empty()) return Status();
  SL_ASSIGN(const Secret secret, read_secret_file(options_.secret_file));
  SL_ASSIGN(auth_key_, wire::AuthKey::derive(secret.bytes()));
  return Status();
}

Status EngineCore::open() {
  for (const std::string& name : options_.transports) {
    for (const auto kind : {transport::TransportKind::kShm, transport::TransportKind::kCma,
                            transport::TransportKind::kStream, transport::TransportKind::kTcp}) {
      if (name == transport::transport_name(kind)) enabled_[static_cast<size_t>(kind)] = true;
    }
  }
  SL_TRY(load_secret());
  SL_ASSIGN(runtime_dir_, enter_runtime_dir(options_, instance_, metrics_));
  if (options_.fault_seed != 0) {
    faults_ = std::make_shared<transport::FaultInjector>(options_, *metrics_);
  }
  auto registry = memory::RegionRegistry::create(instance_, options_.max_regions);
  if (!registry.ok()) return registry.status();
  registry_ = *std::move(registry);
  if (may_use_cma()) offer_cma();
  auto inbox =
      Inbox::create([this](const std::string& what, const Status& why) { report(what, why); });
  if (!inbox.ok()) return inbox.status();
  inbox_ = *std::move(inbox);
  auto loop = ProgressLoop::create();
  if (!loop.ok()) return loop.status();
  loop_ = *std::move(loop);

  auto bind = bind_address(options_);
  if (!bind.ok()) return bind.status();
  const std::string socket = runtime_entry_path(runtime_dir_, ::getpid(), instance_, "sock");
  auto acceptor = Acceptor::create(*this, socket, *bind);
  if (!acceptor.ok()) return acceptor.status();
  acceptor_ = *std::move(acceptor);
  auto advertised = advertised_address(options_, acceptor_->bound());
  if (!advertised.ok()) return advertised.status();
  advertised_ = *std::move(advertised);
  stream_host_ = std::make_unique<StreamHost>(*this);
  return Status();
}

void EngineCore::offer_cma() {
  registry_->offer_identity();
  if (!options_.allow_ptrace) return;
  // A kernel without Yama does not know the call, and needs none.
  (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

Status EngineCore::start() {
  SL_TRY(acceptor_->start([this](UniqueFd fd, Carrier carrier, const wire::Hello& hello) {
    greet(std::move(fd), carrier, hello);
  }));
  next_heartbeat_ = Clock::now() + options_.heartbeat_interval;
  return loop_->start([this] { return tick(); });
}

Status EngineCore::usable() const {
  if (ForkGuard::forked(fork_token_)) return forked_status("the engine");
  if (closed_.load()) return Status(Reason::kClosed, "the engine is closed");
  return Status();
}

Result<std::shared_ptr<memory::RegionRecord>> EngineCore::allocate(
    size_t bytes, const memory::SegmentOptions& options) {
  SL_TRY(usable());
  auto segment = memory::Segment::create(bytes, options, instance_);
  if (!segment.ok()) {
    report("allocate", segment.status());
    return segment.status();
  }
  auto record = registry_->add(*std::move(segment), options.access);
  if (!record.ok()) {
    report("allocate", record.status());
    return record.status();
  }
  metrics_->add(metrics::Gauge::kRegions, 1);
  metrics_->add(metrics::Gauge::kRegisteredBytes, static_cast<int64_t>(bytes));
  metrics_->add(metrics::Gauge::kAllocatedBytes, static_cast<int64_t>(bytes));
  return record;
}

Result<std::shared_ptr<memory::RegionRecord>> EngineCore::add_memory(void* address, size_t bytes,
                                                                     Access access) {
  SL_TRY(usable());
  auto record = registry_->add(address, bytes, access);
  if (!record.ok()) {
    report("register", record.status());
    return record.status();
  }
  metrics_->add(metrics::Gauge::kRegions, 1);
  metrics_->add(metrics::Gauge::kRegisteredBytes, static_cast<int64_t>(bytes));
  return record;
}

std::vector<std::byte> EngineCore::descriptor() const {
  wire::EngineDesc desc;
  desc.version = wire::own_version();
  desc.instance = instance_;
  desc.host = host_;
  desc.name = options_.name;
  desc.socket_path = acceptor_->socket_path();
  desc.addresses = {advertised_};
  return wire::encode(desc);
}

std::string EngineCore::address() const { return advertised_; }

wire::Welcome EngineCore::welcome(const wire::Hello& hello) const {
  wire::Welcome welcome;
  welcome.checks = options_.checksum || hello.wants_checks;
  welcome.version = wire::own_version();
  welcome.instance = instance_;
  welcome.host = host_;
  welcome.pid = static_cast<uint32_t>(::getpid());
  welcome.table_capacity = options_.max_regions;
  welcome.ring_bytes = wire::kRingBytes;
  welcome.max_notification_bytes = options_.max_notification_bytes;
  welcome.name = options_.name;
  welcome.socket_path = acceptor_->socket_path();
  return welcome;
}

void EngineCore::report(const std::string& what, const Status& status) const {
  metrics_->fail(status.reason());
  // What the caller asked for is no failure to look into.
  if (status.code() != Code::kCancelled) log_failure("[" + options_.name + "] " + what, status);
}

Status EngineCore::call_on_loop(std::function<Status()> work, const Deadline& deadline) {
  struct Call {
    Mutex mutex;
    CondVar done_changed;
    bool done SL_GUARDED_BY(mutex) = false;
    Status status SL_GUARDED_BY(mutex);
  };
  auto call = std::make_shared<Call>();
  loop_->run([call, work = std::move(work)] {
    Status status = work();
    MutexLock lock(call->mutex);
    call->status = std::move(status);
    call->done = true;
    call->done_changed.notify_all();
  });
  MutexLock lock(call->mutex);
  while (!call->done) {
    if (!call->done_changed.wait_until(call->mutex, deadline) && !call->done) {
      return Status(Reason::kTimedOut, "the progress thread did not answer in time");
    }
  }
  return call->status;
}

Status EngineCore::add_peer(std::shared_ptr<PeerState> peer) {
  MutexLock lock(peers_mutex_);
  // close() sets closed_ before it looks at peers_: it sees this peer, or this sees that it closes.
  SL_TRY(usable());
  peers_.push_back(std::move(peer));
  return Status();
}

void EngineCore::remove_peer(const PeerState& peer) {
  MutexLock lock(peers_mutex_);
  std::erase_if(peers_, [&](const auto& other) { return other.get() == &peer; });
}

std::vector<std::shared_ptr<PeerState>> EngineCore::peers() const {
  MutexLock lock(peers_mutex_);
  return peers_;
}

void EngineCore::attend(std::shared_ptr<PeerState> peer) {
  {
    MutexLock lock(peers_mutex_);
    // Afterwards nobody would take it off the list, and it holds the engine.
    if (!closed_.load()) attended_.push_back(std::move(peer));
  }
  loop_->hurry();
}

// All of them with the heartbeat, else those that have asked for it: a round of the loop costs the
// same however many peers there are.
bool EngineCore::tick_peers(bool heartbeat) {
  std::vector<std::shared_ptr<PeerState>> asked;
  {
    MutexLock lock(peers_mutex_);
    asked.swap(attended_);
  }
  if (heartbeat) {
    asked.clear();
    asked = peers();
  }
  for (auto& peer : asked) {
    if (!peer->tick(heartbeat)) continue;
    MutexLock lock(peers_mutex_);
    attended_.push_back(std::move(peer));
  }
  MutexLock lock(peers_mutex_);
  return !attended_.empty();
}

void EngineCore::end_transfers_of(const PeerState& peer, const Status& why) {
  for (TransferState* state : transfers_.active()) {
    if (&state->peer() == &peer && state->phase() == TransferPhase::kRunning) state->end_early(why);
    state->unref();
  }
}

void EngineCore::greet(UniqueFd fd, Carrier carrier, const wire::Hello& hello) {
  if (hello.role == wire::Role::kData) {
    // Counted, and bounded, with its control connection.
    const Status refused =
        connected(hello.instance)
            ? stream_host_->check_room(hello.instance)
            : Status(Reason::kPermission, "a data connection without a control connection");
    if (refused.ok()) return stream_host_->serve(std::move(fd), hello);
    metrics_->add(metrics::Counter::kHandshakesRefused);
    report("hello from " + hello.name, refused);
    return acceptor_->refuse(fd.get(), refused);
  }
  if (inbound_.size() >= options_.max_peers) {
    const Status full(Reason::kTooManyPeers,
                      "option max_peers allows " + std::to_string(options_.max_peers));
    metrics_->add(metrics::Counter::kHandshakesRefused);
    report("peer " + hello.name, full);
    return acceptor_->refuse(fd.get(), full);
  }
  auto peer = InboundPeer::create(*this, std::move(fd), carrier, hello);
  if (!peer.ok()) return report("peer " + hello.name, peer.status());
  inbound_.push_back(*std::move(peer));
}

void EngineCore::remove_inbound(const InboundPeer& peer) {
  const InstanceId instance = peer.instance();
  std::erase_if(inbound_, [&](const auto& other) { return other.get() == &peer; });
  if (!connected(instance)) stream_host_->drop(instance);
}

bool EngineCore::connected(InstanceId instance) const {
  return std::any_of(inbound_.begin(), inbound_.end(),
                     [&](const auto& peer) { return peer->instance() == instance; });
}

void EngineCore::pause_accepting() noexcept {
  acceptor_->pause(true);
  accepting_paused_ = true;
  resume_accepting_ = Clock::now() + kAcceptPause;
}

Duration EngineCore::tick() {
  const auto now = Clock::now();
  bool busy = acceptor_->tick();
  if (accepting_paused_) {
    busy = true;
    if (now >= resume_accepting_) {
      acceptor_->pause(false);
      accepting_paused_ = false;
    }
  }
  const bool heartbeat = now >= next_heartbeat_;
  if (heartbeat) {
    next_heartbeat_ = now + options_.heartbeat_interval;
    copies_.look_at_cpus();
    inbox_->tick();
    for (TransferState* state : transfers_.active()) {
      state->look_after();
      state->unref();
    }
  }
  busy = tick_peers(heartbeat) || busy;
  const Duration until_deadline = stream_host_->tick();
  if (retired_waits_.load()) {
    retry_retired();
    busy = true;
  }
  const Duration pause = std::min<Duration>(next_heartbeat_ - now, until_deadline);
  return busy ? std::min(kBusyTick, pause) : pause;
}

}  // namespace stagelink::engine
