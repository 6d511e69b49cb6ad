#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stagelink::transport {

// Bytes of range lists that all data connections of one peer may hold together. Who finds no room
// waits in line, and takes nothing from its socket meanwhile.
//
// Thread-safety: used by the poller's thread only.
class ListBudget {
 public:
  class Waiter {
   public:
    // What it has asked for is taken; never called inside take().
    virtual void on_room() = 0;

   protected:
    ~Waiter() = default;
  };
  static constexpr size_t kMaxBytes = 64 << 20;

  // False: `waiter` is told when it is its turn.
  bool take(size_t bytes, Waiter& waiter) {
    if (line_.empty() && fits(bytes)) {
      used_ += bytes;
      return true;
    }
    line_.push_back({&waiter, bytes});
    return false;
  }
  void give_back(size_t bytes) {
    used_ -= bytes;
    while (!line_.empty() && fits(line_.front().bytes)) {
      const Place next = line_.front();
      line_.erase(line_.begin());
      used_ += next.bytes;
      next.waiter->on_room();
    }
  }
  // Leaves the line. Whoever waits behind may have room now.
  void forget(const Waiter& waiter) {
    std::erase_if(line_, [&](const Place& place) { return place.waiter == &waiter; });
    give_back(0);
  }
  size_t used() const noexcept { return used_; }

 private:
  struct Place {
    Waiter* waiter;
    size_t bytes;
  };
  // One list always fits, so that somebody can go on.
  bool fits(size_t bytes) const noexcept { return used_ == 0 || used_ + bytes <= kMaxBytes; }

  size_t used_ = 0;
  std::vector<Place> line_;  // At most one for each connection.
};

}  // namespace stagelink::transport
