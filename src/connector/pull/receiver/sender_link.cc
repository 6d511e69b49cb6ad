#include "connector/pull/receiver/sender_link.h"

#include <utility>

#include <fmt/format.h>

namespace stagelink::pull {
namespace {

constexpr Duration kFailureLasts = std::chrono::milliseconds(250);

}  // namespace

std::shared_ptr<SenderLife> SenderLink::known() const {
  MutexLock lock(mutex_);
  return life_ != nullptr && !life_->is_over() ? life_ : nullptr;
}

Result<std::shared_ptr<SenderLife>> SenderLink::life(const Deadline& deadline) {
  std::shared_ptr<SenderLife> old;  // Goes without the lock.
  {
    MutexLock lock(mutex_);
    while (meeting_) {
      if (met_.wait_until(mutex_, deadline)) continue;
      return Status(Reason::kTimedOut,
                    fmt::format("still waiting to meet the sender {}", sender_.to_string()));
    }
    if (life_ != nullptr && !life_->is_over()) return life_;
    if (Deadline::Clock::now() < failed_until_) return failure_;
    old = std::move(life_);
    life_ = nullptr;
    meeting_ = true;
  }
  if (old != nullptr) home_.metrics.count_reconnect();
  auto met = SenderLife::meet(home_, sender_, deadline);
  MutexLock lock(mutex_);
  meeting_ = false;
  if (met.ok()) {
    life_ = *met;
  } else {
    failure_ = met.status();
    failed_until_ = Deadline::Clock::now() + kFailureLasts;
  }
  met_.notify_all();
  return met;
}

std::shared_ptr<SenderLink> SenderLinks::find(std::string_view host, uint16_t port) {
  std::shared_ptr<SenderLink> dropped;
  MutexLock lock(mutex_);
  auto at = links_.find(host);
  if (at == links_.end()) at = links_.emplace(std::string(host), Links::mapped_type()).first;
  Entry& entry = at->second[port];
  entry.used = ++turn_;
  if (entry.link == nullptr) {
    entry.link = std::make_shared<SenderLink>(home_, Endpoint{std::string(host), port});
    const std::shared_ptr<SenderLink> link = entry.link;
    if (++size_ > kMaxLinks) make_room();
    return link;
  }
  return entry.link;
}

void SenderLinks::make_room() {
  auto oldest_host = links_.end();
  uint16_t oldest_port = 0;
  uint64_t oldest = UINT64_MAX;
  for (auto host = links_.begin(); host != links_.end(); ++host) {
    for (const auto& [port, entry] : host->second) {
      if (entry.used >= oldest) continue;
      oldest = entry.used;
      oldest_host = host;
      oldest_port = port;
    }
  }
  oldest_host->second.erase(oldest_port);
  if (oldest_host->second.empty()) links_.erase(oldest_host);
  --size_;
}

size_t SenderLinks::size() const {
  MutexLock lock(mutex_);
  return size_;
}

void SenderLinks::clear() {
  Links old;
  MutexLock lock(mutex_);
  old.swap(links_);
  size_ = 0;
}

}  // namespace stagelink::pull
