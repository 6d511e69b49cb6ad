#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "transport/fault/fault_injector.h"
#include "transport/poller.h"
#include "transport/transport.h"

namespace stagelink::transport {

// Wraps a transport that works behind the caller's back, with one decision for each slice of
// kSliceBytes of a request:
//
//   drop   the request is not passed on; it ends timed_out at its deadline.
//   delay  it is passed on after at most FaultInjector::kMaxDelayMs.
//   cut    it is not passed on; `cut` is called, and it ends peer_lost (connection_cut).
//   flip   one bit at the destination is inverted. A read: after its success. A write: in a copy of
//          the range that is sent instead, so that the caller's memory stays as it is.
//
// Requests that are held back end, and `cut` is called, in tick() and close().
//
// Thread-safety: post() and cancel() from any thread; everything else from the poller's thread.
class FaultPostedTransport final : public PostedTransport {
 public:
  // The poller outlives close().
  FaultPostedTransport(Poller& poller, std::shared_ptr<PostedTransport> inside,
                       std::shared_ptr<FaultInjector> injector,
                       std::function<void(const Status&)> cut);
  FaultPostedTransport(const FaultPostedTransport&) = delete;
  FaultPostedTransport& operator=(const FaultPostedTransport&) = delete;
  ~FaultPostedTransport() override;

  void post(PostedRequest& request) override;
  void cancel(PostedRequest& request, Status why) override;

  // Passes on or ends what is due; answers how long it is to the next time. The poller is woken
  // when a new request is held back.
  Duration tick();
  // Ends what is held back with `why`; the transport inside is closed by its owner. Idempotent.
  void close(const Status& why);

  static constexpr uint64_t kSliceBytes = 256 << 10;

 private:
  class Flipped;
  struct Held {
    PostedRequest* request;
    Deadline due;
    bool passing = false;  // tick() is handing it on.
    bool cuts = false;
    std::optional<Status> end_with;  // Nothing: pass it on.
  };

  void hold(Held held);
  void post_flipped(PostedRequest& request, uint64_t random);
  bool run_due();
  void hand_on(PostedRequest& request);
  std::unique_ptr<Flipped> take(const Flipped& flipped);

  Poller& poller_;
  const std::shared_ptr<PostedTransport> inside_;
  const std::shared_ptr<FaultInjector> injector_;
  const std::function<void(const Status&)> cut_;
  Mutex mutex_;
  std::vector<Held> held_ SL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Flipped>> flipped_ SL_GUARDED_BY(mutex_);
  bool closed_ SL_GUARDED_BY(mutex_) = false;
};

}  // namespace stagelink::transport
