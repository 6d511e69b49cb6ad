#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "stagelink/notification.h"

namespace stagelink::moriio {

// What is sent after a transfer: "SLT1", the transfer's id (u64), the sender's key (u16 length,
// text).
std::vector<std::byte> pack_inbound_notice(uint64_t id, std::string_view key);

struct InboundNotice {
  uint64_t id = 0;
  std::string key;
};
// Errors: corrupt (frame).
Result<InboundNotice> unpack_inbound_notice(std::span<const std::byte> payload);

// Ends of transfers that peers have begun, each to be asked for once, by peer and id. Two of one
// peer under one id are two entries. Beyond kMaxEntries the oldest are forgotten.
//
// Thread-safety: all methods may run at the same time.
class InboundTable {
 public:
  static constexpr size_t kMaxEntries = 65536;

  // Notifications that are no notices are counted as damaged and dropped.
  void add(const Notification& notification) SL_EXCLUDES(mutex_);
  // The oldest with this peer and id, which is erased.
  std::optional<Reason> pop(std::string_view key, uint64_t id) SL_EXCLUDES(mutex_);
  size_t size() const SL_EXCLUDES(mutex_);

 private:
  using Name = std::pair<std::string, uint64_t>;
  struct Entry {
    Name name;
    Reason outcome;
  };
  using Order = std::list<Entry>;  // Oldest first; so are equal names in by_name_.

  mutable Mutex mutex_;
  Order order_ SL_GUARDED_BY(mutex_);
  std::multimap<Name, Order::iterator> by_name_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::moriio
