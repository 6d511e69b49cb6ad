#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"
#include "transport/poller.h"
#include "transport/stream/frame_receiver.h"
#include "transport/stream/frame_sender.h"
#include "transport/stream/piece_list.h"
#include "transport/stream/request_queue.h"
#include "transport/stream/staging.h"
#include "transport/stream/stream_traits.h"
#include "transport/transport.h"
#include "wire/batch_header.h"

namespace stagelink::transport {

// The initiator's end of one data connection: asks the owner for ranges of its regions, or sends it
// bytes for them. One request is one frame with the whole range list; bytes are received straight
// into, and sent straight out of, local memory.
//
// What a request may count on:
//  1. on_done is called exactly once, by the loop thread (or inside post() when the channel is
//     closed already), and never inside cancel().
//  2. When it is called, local memory is not touched any more. A request that ends early
//  (cancelled,
//     past its deadline, refused) does not wait for the peer for that: bytes of it that still
//     arrive are thrown away, and the rest of a data frame that is being sent is filled with zeros.
//  3. A read succeeds only if exactly its bytes have arrived; a write only if the owner says so.
//     After a failure the destination holds old bytes, new bytes or zeros.
//  4. kMaxInFlight requests are under way at a time, in the order of posting; others wait. A
//  request
//     that has ended early holds its place until the owner has answered.
//  5. A batch whose range list, neighbours merged, exceeds wire::kMaxBatchBytes is refused with
//     limit (too_many_ranges).
//
// Lifetime: the channel keeps itself alive until close() or the loss of the connection, then lives
// as long as somebody holds it.
//
// Thread-safety: post(), cancel() and create() from any thread; everything else from the loop
// thread, or after the loop has ended.
class StreamChannel final : public PostedTransport,
                            private PollHandler,
                            private PollTask,
                            private FrameReceiver::Handler {
 public:
  class Owner {
   public:
    // By the loop thread: the channel has requests, and wants to be ticked until it is idle().
    virtual void on_busy(const std::shared_ptr<StreamChannel>&) {}
    // At most once, as the last call, by the loop thread: the connection is gone (peer_lost, or
    // corrupt if the peer broke the protocol or a frame was damaged) and all requests have ended.
    // Not called by close().
    virtual void on_lost(StreamChannel& channel, const Status& why) = 0;

   protected:
    ~Owner() = default;
  };

  // `fd` is a connected, non-blocking stream socket whose handshake (Role::kData) is over. Poller
  // and owner outlive the channel's close().
  static std::shared_ptr<StreamChannel> create(Poller& poller, UniqueFd fd, Owner& owner,
                                               StreamTraits traits = {});
  StreamChannel(const StreamChannel&) = delete;
  StreamChannel& operator=(const StreamChannel&) = delete;
  ~StreamChannel() override;

  void post(PostedRequest& request) override;
  void cancel(PostedRequest& request, Status why) override;

  // Ends requests whose deadline has passed; answers how long it is to the next deadline.
  Duration tick();
  // Nothing can become overdue. on_busy() tells when that has changed, once after each tick() that
  // has left the channel idle.
  bool idle() const noexcept;
  // Ends all requests with `why`, then the connection. Idempotent. Requests that are posted later
  // end with `why` at once.
  void close(const Status& why);

  // System calls on the socket since the beginning; for tests and benchmarks. Loop thread.
  uint64_t socket_calls() const noexcept { return sender_.calls() + receiver_.calls(); }

  // In on_lost: a request has ended with corrupt (checksum), and counts what ended the connection.
  bool damage_told() const noexcept { return damage_told_; }

  static constexpr size_t kMaxInFlight = 16;

 private:
  struct Cancel {
    PostedRequest* request;
    Status why;
  };
  struct Ended {
    PostedRequest* request;
    Status status;
  };
  // A request under way, or, with a null request, one that ended early and awaits its kDone.
  struct Flight {
    bool used = false;
    uint64_t id = 0;
    PostedRequest* request = nullptr;
    Direction direction = Direction::kRead;
    PieceList pieces;  // Local memory that is still to be filled or sent.
  };

  StreamChannel(Poller& poller, UniqueFd fd, Owner& owner, StreamTraits traits);
  void run() override;
  void on_ready(uint32_t epoll_events) override;
  void call_loop() SL_REQUIRES(mutex_);

  Result<FrameReceiver::Target> on_header(const wire::FrameHeader& header) override;
  Status on_payload(const wire::FrameHeader& header, std::span<const std::byte> payload) override;
  Status on_data(const wire::FrameHeader& header, size_t bytes) override;
  Status on_staged(const wire::FrameHeader& header, uint32_t bytes);
  Status on_outcome(const wire::FrameHeader& header, std::span<const std::byte> payload);

  void take_posted();
  void take_cancels();
  void end_early(PostedRequest& request, const Status& why);
  void start_waiting();
  void start(PostedRequest& request, Flight& flight);
  Status encode_batch(const PostedRequest& request);
  void add_data();
  Status make_progress();
  Status send_some();
  Status receive_some();
  void release(Flight& flight) noexcept;
  void settle(const Status& progress);
  void end_damaged(const Status& progress);
  void shut(const Status& requests_end_with);
  void deliver_ended();
  Status watch();
  Flight* flight_of(uint64_t id) noexcept;
  Flight* flight_of(const PieceList* pieces) noexcept;
  Flight* free_flight() noexcept;

  Poller& poller_;
  Owner& owner_;

  Mutex mutex_;
  RequestQueue posted_ SL_GUARDED_BY(mutex_);
  std::vector<Cancel> cancels_ SL_GUARDED_BY(mutex_);
  bool called_ SL_GUARDED_BY(mutex_) = false;  // run() is in the poller's queue.
  std::optional<Status> closed_ SL_GUARDED_BY(mutex_);
  uint64_t next_id_ SL_GUARDED_BY(mutex_) = 1;  // A request that is not under way has id 0.

  // Loop thread.
  std::shared_ptr<StreamChannel> self_;  // Until closed.
  UniqueFd fd_;
  bool attached_ = false;
  bool told_busy_ = false;
  uint32_t watched_ = 0;  // Events that the poller waits for.
  FrameSender sender_;
  FrameReceiver receiver_;
  const bool grouped_;
  std::optional<Staging> staging_;
  std::array<Flight, kMaxInFlight> flights_;
  Flight* writing_ = nullptr;  // Whose data frames are being sent.
  RequestQueue waiting_;
  std::vector<Ended> ended_;  // on_done is still to be called.
  bool damage_told_ = false;
  wire::BatchHeader batch_;  // Scratch, as is the next.
  std::vector<uint32_t> region_places_;
};

}  // namespace stagelink::transport
