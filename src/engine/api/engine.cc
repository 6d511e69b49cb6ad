#include "stagelink/engine.h"

#include <utility>

#include "base/fork_guard.h"
#include "engine/core.h"
#include "engine/link/dial.h"
#include "engine/region_handle.h"

namespace stagelink {

Engine::Engine(std::shared_ptr<engine::EngineCore> core) noexcept : core_(std::move(core)) {}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  auto core = engine::EngineCore::create(options);
  if (!core.ok()) return core.status();
  return std::unique_ptr<Engine>(new Engine(*std::move(core)));
}

Engine::~Engine() {
  if (ForkGuard::forked(core_->fork_token())) {
    // The parent's threads and sockets are not ours to end: leave everything as it is.
    new std::shared_ptr<engine::EngineCore>(std::move(core_));
    return;
  }
  (void)close();
}

Result<Region> Engine::allocate(size_t bytes, const AllocateOptions& options) {
  SL_TRY(core_->usable());
  const EngineOptions& defaults = core_->options();
  memory::SegmentOptions segment;
  segment.access = options.access;
  segment.pin = options.pin.value_or(defaults.pin);
  segment.huge_pages = options.huge_pages.value_or(defaults.huge_pages);
  segment.prefault = options.prefault.value_or(defaults.prefault);
  segment.numa_node = options.numa_node.value_or(defaults.numa_node);
  auto record = core_->allocate(bytes, segment);
  if (!record.ok()) return record.status();
  return Region(std::make_shared<engine::RegionHandle>(core_, *std::move(record)));
}

Result<Region> Engine::register_memory(void* address, size_t bytes,
                                       const RegisterOptions& options) {
  SL_TRY(core_->usable());
  auto record = core_->add_memory(address, bytes, options.access);
  if (!record.ok()) return record.status();
  return Region(std::make_shared<engine::RegionHandle>(core_, *std::move(record)));
}

std::vector<std::byte> Engine::descriptor() const { return core_->descriptor(); }
std::string Engine::address() const { return core_->address(); }
InstanceId Engine::instance() const noexcept { return core_->instance(); }
const EngineOptions& Engine::options() const noexcept { return core_->options(); }

Result<Peer> Engine::connect(std::span<const std::byte> descriptor, Duration timeout) {
  SL_TRY(core_->usable());
  if (timeout == Duration::zero()) timeout = core_->options().connect_timeout;
  auto peer = engine::dial_descriptor(core_, descriptor, Deadline::in(timeout));
  if (!peer.ok()) {
    core_->report("connect", peer.status());
    return peer.status();
  }
  return Peer(*std::move(peer));
}

Result<Peer> Engine::connect(std::string_view host_port, Duration timeout) {
  SL_TRY(core_->usable());
  if (timeout == Duration::zero()) timeout = core_->options().connect_timeout;
  auto peer = engine::dial_address(core_, host_port, Deadline::in(timeout));
  if (!peer.ok()) {
    core_->report("connect to " + std::string(host_port), peer.status());
    return peer.status();
  }
  return Peer(*std::move(peer));
}

Result<std::vector<Notification>> Engine::notifications(Duration timeout, size_t max) {
  SL_TRY(core_->usable());
  auto taken = core_->inbox().take(max, Deadline::in(timeout));
  if (!taken.empty()) {
    core_->metrics().add(metrics::Counter::kNotificationsReceived, taken.size());
  } else {
    SL_TRY(core_->usable());
  }
  return taken;
}

Result<int> Engine::fileno() {
  SL_TRY(core_->usable());
  const int fd = core_->inbox().arm_fileno();
  if (fd < 0) return Status(Reason::kClosed, "the engine is closed");
  return fd;
}

std::string Engine::metrics_text() const {
  if (ForkGuard::forked(core_->fork_token())) return "";
  return core_->metrics().prometheus_text();
}

Status Engine::close(Duration timeout) {
  if (ForkGuard::forked(core_->fork_token())) return forked_status("the engine");
  return core_->close(Deadline::in(timeout));
}

}  // namespace stagelink
