#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "transport/transport.h"

namespace stagelink::transport {

// Several channels to one peer as one. A read of at least `stripe_min_bytes` is cut, by bytes, into
// as many parts as there are channels; a smaller one goes whole to the channel with the fewest
// bytes under way. All writes go to the first channel: what a failed one has still on its way would
// else arrive behind the bytes of its successor.
//
// 1. A request is over when all its parts are. It fails with the first failure, which cancels the
//    other parts; on_done is called exactly once, when no part touches memory any more.
// 2. A channel whose request ends with peer_lost or corrupt (checksum) takes no more; so does one
// that
//    is removed. Those that it has under way end by themselves.
// 3. Once its parts have grown, nothing is allocated.
//
// Thread-safety: all methods may run at the same time. Whoever posts or cancels keeps the transport
// alive during the call, and until on_done.
class StripedTransport final : public PostedTransport {
 public:
  explicit StripedTransport(uint64_t stripe_min_bytes) noexcept;
  StripedTransport(const StripedTransport&) = delete;
  StripedTransport& operator=(const StripedTransport&) = delete;
  ~StripedTransport() override;

  void add(std::shared_ptr<PostedTransport> channel) SL_EXCLUDES(mutex_);
  void remove(const PostedTransport& channel) SL_EXCLUDES(mutex_);
  void remove_all() SL_EXCLUDES(mutex_);
  size_t channels() const SL_EXCLUDES(mutex_);

  // Without a channel the request ends at once: peer_lost (connection_cut).
  void post(PostedRequest& request) override SL_EXCLUDES(mutex_);
  void cancel(PostedRequest& request, Status why) override SL_EXCLUDES(mutex_);

 private:
  struct Channel {
    std::shared_ptr<PostedTransport> transport;
    uint64_t bytes_under_way = 0;
  };
  struct Group;
  struct Part;
  class Cutter;
  using Parts = std::vector<std::unique_ptr<Part>>;

  Group* open_group(PostedRequest& request) SL_REQUIRES(mutex_);
  Part& add_part(Group& group, const std::shared_ptr<Channel>& channel) SL_REQUIRES(mutex_);
  std::shared_ptr<Channel> idlest() const SL_REQUIRES(mutex_);
  void post_parts(Group& group) SL_EXCLUDES(mutex_);
  // The part is over; its channel is to be let go without the lock.
  std::shared_ptr<Channel> end(Part& part) SL_REQUIRES(mutex_);
  void part_ended(Part& part, Status status) SL_EXCLUDES(mutex_);
  void cancel_parts(Group& group, const Status& why) SL_EXCLUDES(mutex_);
  // Counts `parts` that have ended. Calls on_done behind the last one; nothing of this transport is
  // touched afterwards.
  void parts_left(Group& group, uint32_t parts) SL_EXCLUDES(mutex_);
  void let_go(Group& group) SL_REQUIRES(mutex_);
  void drop(const Channel& channel) SL_REQUIRES(mutex_);

  const uint64_t stripe_min_bytes_;
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<Channel>> channels_ SL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Group>> groups_ SL_GUARDED_BY(mutex_);
  std::vector<Group*> free_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::transport
