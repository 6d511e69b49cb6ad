#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/endpoint.h"
#include "base/mutex.h"
#include "connector/pull/home.h"
#include "connector/pull/receiver/line.h"

namespace stagelink::pull {

// One life of a sender, as a receiver knows it: where its memory is, and the ways to it. A sender
// that has been started again is another life.
//
// Thread-safety: all methods may run at the same time.
class SenderLife {
 public:
  // A line for one thread, given back when the lease goes unless it was spoilt.
  class Lease {
   public:
    Lease() noexcept = default;
    Lease(SenderLife& life, std::shared_ptr<Line> line) noexcept
        : life_(&life), line_(std::move(line)) {}
    Lease(Lease&& other) noexcept
        : life_(std::exchange(other.life_, nullptr)), line_(std::move(other.line_)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(life_, other.life_);
      std::swap(line_, other.line_);
      return *this;
    }
    ~Lease() {
      if (line_ != nullptr) life_->give_back(std::move(line_));
    }
    Line* operator->() const noexcept { return line_.get(); }
    // What keeps the connection there, and with it the claims that were made over it.
    const std::shared_ptr<Line>& line() const noexcept { return line_; }
    void spoil() noexcept { line_.reset(); }

   private:
    SenderLife* life_ = nullptr;
    std::shared_ptr<Line> line_;
  };

  // Asks the sender who it is, for at most `ask_timeout`, and connects the engine to it. Errors:
  // unreachable (nobody answers), incompatible (version; a peer of 0.30 without `compat_030`),
  // those of Engine::connect.
  static Result<std::shared_ptr<SenderLife>> meet(Home& home, const Endpoint& sender,
                                                  const Deadline& deadline);
  SenderLife(Home& home, Endpoint sender, WelcomeMessage welcome) noexcept;
  SenderLife(const SenderLife&) = delete;
  SenderLife& operator=(const SenderLife&) = delete;

  const Endpoint& sender() const noexcept { return sender_; }
  const WelcomeMessage& welcome() const noexcept { return welcome_; }
  // It speaks the messages of 0.30, and has neither stamps nor claims of ours.
  bool is_omni() const noexcept { return is_omni_; }
  // Not to be used for anything new: it has ended, or its connection has.
  bool is_over() const noexcept;
  void set_over() noexcept { over_.store(true); }

  // An idle line, or a new one. Errors: those of connecting.
  Result<Lease> line() SL_EXCLUDES(mutex_);
  // Says that claims are given up or have been read. Never waits: what a line does not take goes
  // with the next ones, and else by the claims' time.
  void release(std::span<const ReleaseEntry> entries) SL_EXCLUDES(mutex_);

  // Local regions, remote ones.
  using Regions = std::pair<std::vector<std::shared_ptr<const Region>>, std::vector<RegionDesc>>;
  // Of the two pools (0) and the two regions of stamps (1).
  const std::shared_ptr<Session>& base_session() const noexcept { return base_session_; }
  Result<std::shared_ptr<Session>> session(const Regions& regions, bool keep) SL_EXCLUDES(mutex_);
  // Of peers of 0.30: by address, into our pool; connected to that port of the sender's host.
  Result<std::shared_ptr<Session>> session_by_address(uint16_t rpc_port) SL_EXCLUDES(mutex_);

 private:
  using SessionKey = std::vector<uint64_t>;

  Status join(const Deadline& deadline);
  Result<std::unique_ptr<Line>> connect_line() const;
  void give_back(std::shared_ptr<Line> line) SL_EXCLUDES(mutex_);
  std::shared_ptr<Line> take_idle() SL_EXCLUDES(mutex_);

  Home& home_;
  const Endpoint sender_;
  const WelcomeMessage welcome_;
  bool is_omni_ = false;
  std::atomic<bool> over_{false};
  mutable std::atomic<bool> use_zmq_{false};  // Its UNIX socket is out of our reach.
  std::shared_ptr<Peer> peer_;
  std::shared_ptr<Session> base_session_;

  Mutex mutex_;
  std::vector<std::shared_ptr<Line>> idle_ SL_GUARDED_BY(mutex_);
  std::vector<ReleaseEntry> unsent_ SL_GUARDED_BY(mutex_);
  std::map<SessionKey, std::shared_ptr<Session>> sessions_ SL_GUARDED_BY(mutex_);
  std::map<uint16_t, std::pair<std::shared_ptr<Peer>, std::shared_ptr<Session>>> by_port_
      SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::pull
