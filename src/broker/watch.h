#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "broker/reach.h"
#include "broker/sdk.h"
#include "broker/session.h"
#include "broker/shared_clients.h"

namespace stagelink::broker {

// The clients that are connected.
//
// Thread-safety: all methods may run at the same time.
class Sessions {
 public:
  using Pointer = std::shared_ptr<Session>;
  void add(Pointer session);
  Pointer find(int socket) const;
  void remove(int socket);
  std::vector<Pointer> all() const;

 private:
  mutable Mutex mutex_;
  std::map<int, Pointer> sessions_ SL_GUARDED_BY(mutex_);
};

// Looks after the worker, the other workers of its ring and etcd, all the time and beside the
// operations, and writes what it sees into the pages of all clients. An operation on a dead worker
// would otherwise take its whole timeout to fail, and a key that lies behind a cut looks as if
// nobody had put it.
//
// Its threads end with the process: a call into the library can block one for long.
//
// Thread-safety: all methods may run at the same time.
class Watcher {
 public:
  Watcher(Sdk& sdk, SharedClients& clients, Sessions& sessions);

  // Of the first client: whom to watch, and as whom. Later ones only get what is seen. Gives the
  // new session what is known.
  void watch_for(Session& session);

 private:
  using Clock = std::chrono::steady_clock;
  struct Sight {
    store::yuanrong::Seen seen = store::yuanrong::Seen::kUnknown;
    std::string text;
    bool operator==(const Sight&) const = default;
  };
  struct Member {
    std::unique_ptr<Reach> reach;
    int misses = 0;
  };
  using Members = std::map<std::string, Member>;

  void watch_worker();
  void watch_health();
  void watch_ring();
  void ask_coordinator();
  bool refresh(Members& members);
  Sight look_at(Members& members) const;
  void see(Sight Watcher::*what, Sight now);
  void write(Session& session) SL_REQUIRES(mutex_);

  Sdk& sdk_;
  SharedClients& clients_;
  Sessions& sessions_;
  store::yuanrong::WorkerOptions options_;  // Set before the threads start.
  std::chrono::milliseconds interval_{0};

  // When the check that is under way began, 0 if none is; and whether the last one was well.
  std::atomic<int64_t> health_since_{0};
  std::atomic<bool> health_well_{true};

  Mutex mutex_;
  bool started_ SL_GUARDED_BY(mutex_) = false;
  std::string health_text_ SL_GUARDED_BY(mutex_);
  // Workers that etcd has named, and when it last did.
  std::map<std::string, Clock::time_point> named_ SL_GUARDED_BY(mutex_);
  Sight worker_ SL_GUARDED_BY(mutex_);
  Sight ring_ SL_GUARDED_BY(mutex_);
  Sight coordinator_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::broker
