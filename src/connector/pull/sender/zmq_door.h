#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "connector/pull/sender/desk.h"
#include "connector/zmq/socket.h"

namespace stagelink::pull {

// Where everybody may ask who may connect: a ZeroMQ ROUTER, encrypted and for holders of the same
// secret if there is one. The socket is its thread's; answers that others have for a peer are
// handed to it.
//
// Thread-safety: all methods may run at the same time.
class ZmqDoor {
 public:
  // Bound; not yet answering.
  static Result<std::unique_ptr<ZmqDoor>> open(zmq::Router router);
  ~ZmqDoor();
  ZmqDoor(const ZmqDoor&) = delete;
  ZmqDoor& operator=(const ZmqDoor&) = delete;

  const Endpoint& endpoint() const noexcept { return endpoint_; }
  // `after_message` runs on the thread, behind each message.
  void start(Desk& desk, std::function<void()> after_message);
  // Nobody is answered any more. Idempotent; by one thread at a time.
  void stop();
  uint64_t messages() const noexcept { return messages_.load(); }
  uint64_t answers_dropped() const noexcept { return outbox_->dropped.load(); }

 private:
  class Peer;
  // What askers share with the door, which they may outlive.
  struct Outbox {
    explicit Outbox(UniqueFd fd) noexcept : wake(std::move(fd)) {}
    const UniqueFd wake;
    std::atomic<std::thread::id> thread;  // Which sends at once.
    std::atomic<uint64_t> dropped{0};
    Mutex mutex;
    bool closed SL_GUARDED_BY(mutex) = false;
    std::vector<std::pair<zmq::Bytes, Message>> answers SL_GUARDED_BY(mutex);  // By identity.
  };

  ZmqDoor(zmq::Router router, std::shared_ptr<Outbox> outbox) noexcept;
  void run();
  void handle(zmq::Frames message);
  void send_all();
  void send(const zmq::Bytes& identity, MessageSpan answer);

  zmq::Router router_;  // Of the thread.
  const Endpoint endpoint_;
  const std::shared_ptr<Outbox> outbox_;
  Desk* desk_ = nullptr;
  std::function<void()> after_message_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> messages_{0};
  std::thread thread_;
};

}  // namespace stagelink::pull
