#pragma once

#include <cstdint>

#include "base/mutex.h"

namespace stagelink::memory {

// Threads that wait for space, in the order in which they came. Only the first may take, so that a
// large request is not starved by small ones that come after it. Each wait is bounded by its
// deadline, and so is the time that one request can hold up those behind it.
//
// Thread-safety: everything happens under the mutex of the owner.
class WaitLine {
 public:
  // A place in line, for as long as the object lives. Leaving it lets the next one try.
  class Place {
   public:
    explicit Place(WaitLine& line) noexcept : line_(line), before_(line.last_) {
      (before_ != nullptr ? before_->behind_ : line_.first_) = this;
      line_.last_ = this;
      ++line_.length_;
    }
    ~Place() {
      (before_ != nullptr ? before_->behind_ : line_.first_) = behind_;
      (behind_ != nullptr ? behind_->before_ : line_.last_) = before_;
      --line_.length_;
      line_.wake_first();
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    bool is_first() const noexcept { return line_.first_ == this; }
    // Sleeps until something may have changed; false at the deadline.
    bool wait_until(Mutex& mutex, const Deadline& deadline) SL_REQUIRES(mutex) {
      return woken_.wait_until(mutex, deadline);
    }

   private:
    friend class WaitLine;
    WaitLine& line_;
    Place* before_;
    Place* behind_ = nullptr;
    CondVar woken_;
  };

  WaitLine() noexcept = default;
  WaitLine(const WaitLine&) = delete;
  WaitLine& operator=(const WaitLine&) = delete;

  // To be called when there is more space.
  void wake_first() noexcept {
    if (first_ != nullptr) first_->woken_.notify_one();
  }
  uint32_t length() const noexcept { return length_; }

 private:
  Place* first_ = nullptr;
  Place* last_ = nullptr;
  uint32_t length_ = 0;
};

}  // namespace stagelink::memory
