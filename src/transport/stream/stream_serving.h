#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "memory/region_registry.h"
#include "metrics/engine_metrics.h"
#include "stagelink/result.h"
#include "transport/poller.h"
#include "transport/stream/frame_receiver.h"
#include "transport/stream/frame_sender.h"
#include "transport/stream/list_budget.h"
#include "transport/stream/served_batch.h"
#include "transport/stream/staging.h"
#include "transport/stream/stream_traits.h"
#include "wire/batch_header.h"

namespace stagelink::transport {

// The owner's end of one data connection. Serves reads in order, one at a time, and takes the
// writes of the peer, one at a time, at the same time.
//
// Nothing the peer sends is trusted: each range is checked when its request is served, and a
// request that fails is answered with kDone while the connection goes on. Only a broken frame ends
// it.
//
// Bounds: kMaxQueuedReads requests, kMaxQueuedBatchBytes of range lists, the budget of all
// connections of the peer, and kMaxAnswerBytes of answers; while one is reached, nothing more is
// taken from the socket. A long list is checked in steps, so that others get their turn.
//
// Retired regions: tick() and each round of work look whether a region in use is being
// deregistered. If so, the request ends with superseded and its regions are let go at once; what a
// data frame under way still owes is sent as zeros, so the connection stays in step.
//
// Thread-safety: used by the poller's thread only.
class StreamServing final : private PollHandler,
                            private FrameReceiver::Handler,
                            private ListBudget::Waiter {
 public:
  class Owner {
   public:
    // It has requests, and wants to be ticked until tick() answers false.
    virtual void on_busy(StreamServing& serving) = 0;
    // A write begins. What a former one, whose connection is lost to the peer, has still on its way
    // must not land behind it: the owner ends such connections.
    virtual void on_write(StreamServing& serving) = 0;
    // The last call, exactly once, unless the owner destroys the serving first. Ok: the peer closed
    // between frames. The owner may destroy the serving inside it.
    virtual void on_closed(StreamServing& serving, const Status& why) = 0;

   protected:
    ~Owner() = default;
  };
  struct Context {
    Poller& poller;
    memory::RegionRegistry& registry;
    metrics::EngineMetrics& metrics;
    std::shared_ptr<ListBudget> budget;  // Of the peer.
  };

  static Result<std::unique_ptr<StreamServing>> create(const Context& context, UniqueFd fd,
                                                       InstanceId peer, StreamTraits traits,
                                                       Owner& owner);
  StreamServing(const StreamServing&) = delete;
  StreamServing& operator=(const StreamServing&) = delete;
  ~StreamServing();

  // Lets go of retired regions and ends overdue requests. False: it is idle, and may be gone,
  // because this may call Owner::on_closed.
  bool tick();
  InstanceId peer() const noexcept { return peer_; }
  // In the middle of a write that nobody waits for any more: the other end has gone.
  bool has_orphaned_write() const noexcept;
  uint64_t socket_calls() const noexcept { return sender_.calls() + receiver_.calls(); }

  static constexpr size_t kMaxQueuedReads = 32;
  static constexpr size_t kMaxQueuedBatchBytes = wire::kMaxBatchBytes;
  static constexpr size_t kMaxAnswerBytes = 64 << 10;

 private:
  struct QueuedRead {
    bool cancelled = false;  // And answered.
    uint64_t id = 0;
    Deadline deadline = Deadline::in(Duration::zero());
    wire::BatchHeader batch;
    size_t batch_bytes = 0;
  };
  struct ActiveRead {
    bool used = false;
    size_t list_bytes = 0;
    bool answered = false;  // kDone waits behind the last data frame, at done_at.
    size_t done_at = 0;
    size_t done_bytes = 0;
    uint64_t id = 0;
    Deadline deadline = Deadline::in(Duration::zero());
    uint64_t total = 0;
    uint64_t left = 0;  // Bytes that no data frame has taken yet.
    ServedBatch batch;
  };
  struct ActiveWrite {
    bool used = false;
    bool opening = false;  // Its list is being checked: nothing is received meanwhile.
    size_t list_bytes = 0;
    bool answered = false;  // With a failure: what still comes is thrown away.
    uint64_t id = 0;
    Deadline deadline = Deadline::in(Duration::zero());
    uint64_t total = 0;
    uint64_t left = 0;  // Bytes that have not arrived.
    ServedBatch batch;
  };

  StreamServing(const Context& context, UniqueFd fd, InstanceId peer, StreamTraits traits,
                Owner& owner);
  void on_ready(uint32_t epoll_events) override;
  Result<FrameReceiver::Target> on_header(const wire::FrameHeader& header) override;
  Status on_payload(const wire::FrameHeader& header, std::span<const std::byte> payload) override;
  Status on_data(const wire::FrameHeader& header, size_t bytes) override;
  Status on_staged(const wire::FrameHeader& header, std::span<const std::byte> payload);
  Status on_staged_ack(const wire::FrameHeader& header, std::span<const std::byte> payload);

  Status queue_read(uint64_t id, std::span<const std::byte> payload);
  Status begin_write(uint64_t id, std::span<const std::byte> payload);
  void open_write();
  void end_opening(const Status& opened);
  void on_room() override;
  bool busy() const noexcept;
  void release_read();
  void release_write();
  void cancel(uint64_t id);
  void prepare_data();
  uint64_t add_data();
  // True if the first read in line, or its list, is done with and the next may be looked at.
  bool open_next_read();
  void pop_read();
  void finish_read();
  void abort_read(const Status& why);
  void abort_write(const Status& why);
  bool abort_overdue();
  void answer(uint64_t id, const Status& status);
  void tell_damaged(const Status& why);
  void log_peer_failure(const char* what, const Status& status) const;
  bool may_receive() const noexcept;

  // Progress of one round. A failure closes the connection.
  Status make_progress(uint32_t epoll_events);
  Status receive_some();
  Status send_some();
  Status watch();
  void fail(const Status& why);

  Poller& poller_;
  memory::RegionRegistry& registry_;
  metrics::EngineMetrics& metrics_;
  Owner& owner_;
  const std::shared_ptr<ListBudget> budget_;
  const InstanceId peer_;
  UniqueFd fd_;
  uint32_t watched_ = 0;
  FrameSender sender_;
  FrameReceiver receiver_;
  std::optional<Staging> staging_;
  std::array<QueuedRead, kMaxQueuedReads> queue_;  // A ring, so that range lists keep capacity.
  size_t queue_first_ = 0;
  size_t queue_size_ = 0;
  size_t queued_batch_bytes_ = 0;
  bool opening_read_ = false;  // The list of the first in line is being checked.
  size_t incoming_list_ = 0;   // Bytes of the list that arrives, once the budget has room.
  bool awaits_room_ = false;
  bool told_busy_ = false;
  ActiveRead read_;
  ActiveWrite write_;
  wire::BatchHeader write_batch_;  // Scratch.
};

}  // namespace stagelink::transport
