#include "connector/moriio/io/io_engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/endpoint.h"
#include "base/log.h"
#include "base/text.h"
#include "config/engine_config.h"
#include "wire/hello.h"

namespace stagelink::moriio {
namespace {

constexpr size_t kMaxCachedSessions = 1024;
constexpr size_t kNoticesAtATime = 256;

Status check_key(std::string_view key) {
  if (!key.empty() && key.size() <= DescReader::kMaxTextBytes && is_plain_text(key)) return {};
  return {Reason::kInvalidArgument,
          fmt::format("the key of an IO engine is plain text of 1 to {} bytes, not \"{}\"",
                      DescReader::kMaxTextBytes, to_plain_text(key, DescReader::kMaxTextBytes))};
}

Status logged(const std::string& what, Status status) {
  if (!status.ok()) log_failure(what, status);
  return status;
}

}  // namespace

IoEngine::IoEngine(std::string key, EngineOptions options, std::shared_ptr<Engine> engine)
    : shared_(std::make_shared<IoShared>()),
      options_(std::move(options)),
      engine_(std::move(engine)) {
  shared_->key = std::move(key);
}

Result<std::unique_ptr<IoEngine>> IoEngine::create(std::string key, const IoEngineConfig& config) {
  SL_TRY(check_key(key));
  EngineOptions options = config.engine;
  options.name = to_plain_text(key, wire::kMaxNameBytes);
  if (!config.host.empty()) {
    options.bind = Endpoint{config.host, config.port}.to_string();
  } else if (config.port != 0) {
    SL_ASSIGN(Endpoint endpoint, parse_endpoint(options.bind));
    endpoint.port = config.port;
    options.bind = endpoint.to_string();
  }
  SL_ASSIGN(std::shared_ptr<Engine> engine, Engine::create(options));
  return std::unique_ptr<IoEngine>(
      new IoEngine(std::move(key), std::move(options), std::move(engine)));
}

IoEngine::~IoEngine() { (void)close(); }

Status IoEngine::close(Duration timeout) {
  std::shared_ptr<Engine> engine;
  decltype(cache_) sessions;
  decltype(remotes_) remotes;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    engine = engine_;
    sessions.swap(cache_);
    remotes.swap(remotes_);
    for (const auto& [type, backend] : backends_) backend->removed.store(true);
    backends_.clear();
  }
  const Status status = engine->close(timeout);
  if (status.ok()) memory_.clear();
  shared_->in_flight.sweep();
  return status;
}

Status IoEngine::create_backend(BackendType type, const BackendConfig& config) {
  if (type != BackendType::kRdma && type != BackendType::kTcp) {
    return {Reason::kUnsupported,
            fmt::format("backend {} is not there: RDMA takes the best way to each peer (shm, cma, "
                        "unix, tcp), TCP takes tcp alone",
                        backend_name(type))};
  }
  auto backend = std::make_shared<IoBackend>();
  backend->type = type;
  backend->config = config;
  MutexLock lock(mutex_);
  if (closed_) return {Reason::kClosed, "the IO engine is closed"};
  if (backend->config.transports.empty()) {
    backend->config.transports =
        type == BackendType::kTcp ? std::vector<std::string>{"tcp"} : options_.transports;
  }
  // Of all backends together, by the preference of the first that names one.
  std::vector<std::string> transports;
  const auto add = [&transports](const IoBackend& of) {
    for (const std::string& name : of.config.transports) {
      if (std::find(transports.begin(), transports.end(), name) == transports.end()) {
        transports.push_back(name);
      }
    }
  };
  for (const auto& [other, existing] : backends_) {
    if (other != type) add(*existing);
  }
  add(*backend);
  SL_TRY(use_transports(std::move(transports)));
  backends_.insert_or_assign(type, std::move(backend));
  return {};
}

// The engine has its transports for life, so another engine takes its place, at the same port.
Status IoEngine::use_transports(std::vector<std::string> transports) {
  if (transports == engine_->options().transports) return {};
  if (!memory_.empty() || !remotes_.empty()) {
    return {Reason::kInvalidState,
            "create the backend before memory and remote engines are registered: it asks for other "
            "transports than those in use"};
  }
  SL_ASSIGN(Endpoint bind, parse_endpoint(engine_->options().bind));
  SL_ASSIGN(const Endpoint bound, parse_endpoint(engine_->address()));
  EngineOptions options = engine_->options();
  if (bind.port == 0) bind.port = bound.port;
  options.bind = bind.to_string();
  options.transports = std::move(transports);
  SL_TRY(config::check_engine_options(options));
  const EngineOptions before = engine_->options();
  SL_TRY(engine_->close());
  auto next = Engine::create(options);
  if (next.ok()) {
    engine_ = *std::move(next);
  } else if (auto again = Engine::create(before); again.ok()) {
    engine_ = *std::move(again);
  }
  return next.status();
}

Status IoEngine::remove_backend(BackendType type) {
  std::shared_ptr<IoBackend> backend;
  decltype(cache_) sessions;  // Go after the lock.
  MutexLock lock(mutex_);
  const auto found = backends_.find(type);
  if (found == backends_.end()) {
    return {Reason::kNotFound, fmt::format("there is no backend {}", backend_name(type))};
  }
  found->second->removed.store(true);
  backends_.erase(found);
  sessions.swap(cache_);
  return {};
}

std::shared_ptr<Engine> IoEngine::engine() const {
  MutexLock lock(mutex_);
  return engine_;
}

std::shared_ptr<IoBackend> IoEngine::backend() const {
  MutexLock lock(mutex_);
  const auto rdma = backends_.find(BackendType::kRdma);
  if (rdma != backends_.end()) return rdma->second;
  return backends_.empty() ? nullptr : backends_.begin()->second;
}

EngineDesc IoEngine::engine_desc() const {
  EngineDesc desc = describe_process();
  desc.key = shared_->key;
  if (const auto address = parse_endpoint(engine()->address()); address.ok()) {
    desc.host = (*address).host;
    desc.port = (*address).port;
  }
  return desc;
}

Status IoEngine::register_remote_engine(const EngineDesc& desc) {
  SL_TRY(check_key(desc.key));
  if (desc.host.empty() || desc.port == 0) {
    return {Reason::kInvalidArgument, fmt::format("remote engine {} has no address: \"{}\" port {}",
                                                  desc.key, desc.host, desc.port)};
  }
  std::shared_ptr<RemoteEngine> before;
  {
    MutexLock lock(mutex_);
    if (closed_) return {Reason::kClosed, "the IO engine is closed"};
    const auto found = remotes_.find(desc.key);
    if (found != remotes_.end() && found->second->desc() == desc) return {};
    if (found == remotes_.end() && remotes_.size() >= engine_->options().max_peers) {
      return {Reason::kTooManyPeers,
              fmt::format("{} remote engines are registered (option max_peers)", remotes_.size())};
    }
    auto remote = std::make_shared<RemoteEngine>(desc);
    if (found != remotes_.end()) {
      before = std::exchange(found->second, std::move(remote));
    } else {
      remotes_.emplace(desc.key, std::move(remote));
    }
  }
  if (before != nullptr) before->drop();
  return {};
}

Status IoEngine::deregister_remote_engine(const EngineDesc& desc) {
  std::shared_ptr<RemoteEngine> remote;
  decltype(cache_) sessions;
  {
    MutexLock lock(mutex_);
    const auto found = remotes_.find(desc.key);
    if (found == remotes_.end()) {
      return {Reason::kNotFound, fmt::format("remote engine {} is not registered", desc.key)};
    }
    remote = std::move(found->second);
    remotes_.erase(found);
    for (auto it = cache_.begin(); it != cache_.end();) {
      auto next = std::next(it);
      if (std::get<std::string>(it->first) == desc.key) sessions.insert(cache_.extract(it));
      it = next;
    }
  }
  remote->drop();
  return {};
}

Result<std::shared_ptr<RemoteEngine>> IoEngine::remote_engine(const std::string& key) const {
  MutexLock lock(mutex_);
  const auto found = remotes_.find(key);
  if (found != remotes_.end()) return found->second;
  return Status(Reason::kNotFound, fmt::format("remote engine {} is not registered", key));
}

Result<std::shared_ptr<Region>> IoEngine::allocate(size_t bytes, const AllocateOptions& options) {
  return memory_.allocate(*engine(), bytes, options);
}

Result<MemoryDesc> IoEngine::register_memory(void* address, size_t bytes, int32_t device_id,
                                             MemoryLocation location) {
  if (location == MemoryLocation::kGpu) {
    return Status(Reason::kUnsupported,
                  "GPU memory cannot be registered: only the host's memory is reached");
  }
  MemoryDesc form;
  form.engine_key = shared_->key;
  form.device_id = device_id;
  form.loc = location;
  return memory_.add(*engine(), address, bytes, std::move(form));
}

Status IoEngine::deregister_memory(const MemoryDesc& desc) {
  decltype(cache_) sessions;
  {
    MutexLock lock(mutex_);
    for (auto it = cache_.begin(); it != cache_.end();) {
      auto next = std::next(it);
      if (std::get<0>(it->first) == desc.id) sessions.insert(cache_.extract(it));
      it = next;
    }
  }
  return memory_.remove(desc);
}

Result<std::shared_ptr<IoSession>> IoEngine::create_session(const MemoryDesc& local,
                                                            const MemoryDesc& remote) {
  IoSession::Parts parts;
  parts.shared = shared_;
  parts.remote_memory = remote;
  SL_TRY(logged("session with " + remote.engine_key, look_up(local, parts)));
  // What goes wrong from here on has been logged where it did.
  SL_ASSIGN(const RegionDesc region, remote.region());
  parts.remote_offset = remote.data - region.address;
  SL_ASSIGN(parts.peer, parts.remote->peer(*engine(), region.instance));
  const Region* locals[] = {parts.local->region.get()};
  SL_ASSIGN(Session session, parts.peer->session(locals, std::span(&region, 1)));
  return std::make_shared<IoSession>(std::move(parts), std::move(session));
}

Status IoEngine::look_up(const MemoryDesc& local, IoSession::Parts& parts) const {
  parts.backend = backend();
  if (parts.backend == nullptr) {
    return {Reason::kInvalidState, "no backend: call create_backend() first"};
  }
  SL_ASSIGN(parts.local, memory_.find(local));
  SL_ASSIGN(parts.remote, remote_engine(parts.remote_memory.engine_key));
  return parts.remote_memory.region().status();
}

Result<std::shared_ptr<IoSession>> IoEngine::cached_session(const MemoryDesc& local,
                                                            const MemoryDesc& remote) {
  const CacheKey key{local.id, remote.engine_key, remote.id};
  {
    MutexLock lock(mutex_);
    const auto found = cache_.find(key);
    if (found != cache_.end() && !found->second->broken() &&
        found->second->remote_memory() == remote && found->second->local().desc == local) {
      return found->second;
    }
  }
  SL_ASSIGN(std::shared_ptr<IoSession> session, create_session(local, remote));
  decltype(cache_) dropped;  // Go after the lock.
  MutexLock lock(mutex_);
  if (cache_.size() >= kMaxCachedSessions) dropped.swap(cache_);
  if (!closed_) cache_.insert_or_assign(key, session);
  return session;
}

std::vector<StatusRef> IoEngine::start_all(Start start, std::span<const IoTransfer> transfers) {
  std::vector<StatusRef> statuses;
  statuses.reserve(transfers.size());
  for (const IoTransfer& transfer : transfers) {
    auto session = cached_session(transfer.local, transfer.remote);
    statuses.push_back(session.ok() ? (**session.*start)(transfer.ranges, transfer.id)
                                    : failed_status(session.status()));
  }
  return statuses;
}

std::vector<StatusRef> IoEngine::batch_read(std::span<const IoTransfer> transfers) {
  return start_all(&IoSession::batch_read, transfers);
}

std::vector<StatusRef> IoEngine::batch_write(std::span<const IoTransfer> transfers) {
  return start_all(&IoSession::batch_write, transfers);
}

std::optional<StatusRef> IoEngine::pop_inbound_transfer_status(std::string_view key, uint64_t id) {
  const std::shared_ptr<Engine> from = engine();
  for (;;) {
    auto notices = from->notifications(Duration::zero(), kNoticesAtATime);
    if (!notices.ok()) break;
    for (const Notification& notice : *notices) inbound_.add(notice);
    if ((*notices).size() < kNoticesAtATime) break;
  }
  const auto outcome = inbound_.pop(key, id);
  if (!outcome.has_value()) return std::nullopt;
  if (*outcome != Reason::kOk) {
    return failed_status(Status(*outcome, fmt::format("the transfer {} of {} failed", id, key)));
  }
  auto status = std::make_shared<TransferStatus>();
  status->update(StatusCode::kSuccess, "");
  return status;
}

std::string IoEngine::metrics_text() const { return engine()->metrics_text(); }

}  // namespace stagelink::moriio
