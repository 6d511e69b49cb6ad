#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "stagelink/status.h"

namespace stagelink::store_connector {

struct WindowBounds {
  int64_t window_size = -1;   // Objects of one edge that nobody has consumed. -1: any number.
  int64_t max_inflight = -1;  // Puts of one edge at the same time.
};

// What one sender has put and not yet seen consumed, edge by edge, and how many of its puts run. A
// put begins with enter() and ends with leave().
//
// An object is taken as consumed when the store no longer has it: got and deleted, expired, erased.
// Nobody tells the sender; it asks the store, and only when its window is full or reap() is called.
//
// Thread-safety: all methods may run at the same time.
class EdgeWindow {
 public:
  // Whether the store still has an object under this key; true if it cannot tell.
  using StillThere = std::function<bool(const std::string& key)>;

  EdgeWindow(const WindowBounds& bounds, StillThere still_there);
  EdgeWindow(const EdgeWindow&) = delete;
  EdgeWindow& operator=(const EdgeWindow&) = delete;

  // Waits until the edge has room for one put more. Errors: timed_out names the bound,
  // invalid_state (closed).
  Status enter(std::string_view edge, const Deadline& deadline);
  // Ends a put. An object that was sealed is remembered under its key and, for find(), its id.
  void leave(std::string_view edge, std::string_view id, const std::string& key, bool sealed);

  // The keys of what was put under this id, or as one of its chunks ("ID_FROM_NUMBER", on an edge
  // that begins at FROM), and is remembered; they are forgotten.
  std::vector<std::string> take(std::string_view id);
  void forget(const std::string& key);
  // Asks the store for the oldest ones, at most `limit`, and forgets what is gone. How many.
  size_t reap(size_t limit);

  size_t size() const;
  // Ends what waits, and all that comes.
  void close();

  // Beyond this the oldest is forgotten; it goes by its time.
  static constexpr size_t kMaxRemembered = 65'536;

 private:
  struct Edge {
    int64_t in_flight = 0;
    int64_t unconsumed = 0;
  };
  struct Entry {
    std::string edge;
    std::string id;
    uint64_t turn;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  Edge& edge_of(std::string_view name) SL_REQUIRES(mutex_);
  bool has_room(const Edge& edge) const noexcept;
  void drop(Entries::iterator entry) SL_REQUIRES(mutex_);
  // The oldest keys, of one edge or (empty) of all.
  std::vector<std::string> oldest(std::string_view edge, size_t limit) SL_REQUIRES(mutex_);
  size_t ask_store(std::string_view edge, size_t limit) SL_EXCLUDES(mutex_);

  const WindowBounds bounds_;
  const StillThere still_there_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool closed_ SL_GUARDED_BY(mutex_) = false;
  uint64_t next_turn_ SL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, Edge, std::less<>> edges_ SL_GUARDED_BY(mutex_);
  Entries entries_ SL_GUARDED_BY(mutex_);                        // By key.
  std::map<uint64_t, std::string> turns_ SL_GUARDED_BY(mutex_);  // Keys, the oldest first.
  std::multimap<std::string, std::string, std::less<>> ids_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::store_connector
