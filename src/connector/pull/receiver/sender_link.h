#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "connector/pull/receiver/sender_life.h"

namespace stagelink::pull {

// The address of a sender, and the life that answers there at present: asked for when it is first
// needed, by one thread while the others wait, and again when that life is over. After a failure
// those who come within a moment are told the same, so that a dead sender costs no wait for each.
//
// Thread-safety: all methods may run at the same time.
class SenderLink {
 public:
  SenderLink(Home& home, Endpoint sender) : home_(home), sender_(std::move(sender)) {}
  SenderLink(const SenderLink&) = delete;
  SenderLink& operator=(const SenderLink&) = delete;

  const Endpoint& sender() const noexcept { return sender_; }
  // The life that is known, if it is not over.
  std::shared_ptr<SenderLife> known() const SL_EXCLUDES(mutex_);
  // Errors: those of SenderLife::meet(); timed_out.
  Result<std::shared_ptr<SenderLife>> life(const Deadline& deadline) SL_EXCLUDES(mutex_);

 private:
  Home& home_;
  const Endpoint sender_;
  mutable Mutex mutex_;
  CondVar met_;
  bool meeting_ SL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<SenderLife> life_ SL_GUARDED_BY(mutex_);
  Status failure_ SL_GUARDED_BY(mutex_);
  Deadline::Clock::time_point failed_until_ SL_GUARDED_BY(mutex_){};
};

// All senders that a receiver knows. The one that was used least recently goes when there are too
// many.
//
// Thread-safety: all methods may run at the same time.
class SenderLinks {
 public:
  explicit SenderLinks(Home& home) noexcept : home_(home) {}
  std::shared_ptr<SenderLink> find(std::string_view host, uint16_t port) SL_EXCLUDES(mutex_);
  size_t size() const SL_EXCLUDES(mutex_);
  void clear() SL_EXCLUDES(mutex_);

  static constexpr size_t kMaxLinks = 1024;

 private:
  struct Entry {
    std::shared_ptr<SenderLink> link;
    uint64_t used = 0;
  };
  using Links = std::map<std::string, std::map<uint16_t, Entry>, std::less<>>;

  void make_room() SL_REQUIRES(mutex_);

  Home& home_;
  mutable Mutex mutex_;
  uint64_t turn_ SL_GUARDED_BY(mutex_) = 0;
  size_t size_ SL_GUARDED_BY(mutex_) = 0;
  Links links_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::pull
