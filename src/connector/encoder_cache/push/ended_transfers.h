#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <unordered_map>

#include "stagelink/status.h"

namespace stagelink::encoder_cache {

// What has become of the transfers that ended last, so that whoever asks late is told why. The
// oldest is forgotten when there are too many.
//
// Thread-safety: one call at a time.
class EndedTransfers {
 public:
  struct Ended {
    Status why;               // Ok: it got what it wanted.
    bool is_refused = false;  // Its next reservation is for nobody.
    bool is_heard = false;    // Its request knows.
  };

  explicit EndedTransfers(size_t most) : most_(most) {}

  void remember(const std::string& transfer_id, Ended ended);
  const Ended* find(const std::string& transfer_id) const;  // Null: not known.
  Ended* find(const std::string& transfer_id);
  void forget(const std::string& transfer_id);
  size_t size() const noexcept { return ended_.size(); }

 private:
  struct Slot {
    Ended ended;
    std::list<std::string>::iterator age;
  };
  const size_t most_;
  std::list<std::string> by_age_;  // Oldest first.
  std::unordered_map<std::string, Slot> ended_;
};

}  // namespace stagelink::encoder_cache
