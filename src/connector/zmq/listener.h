#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "connector/zmq/socket.h"

namespace stagelink::zmq {

// What a listener does with a message. Called on its thread; whatever it throws is logged and the
// listener goes on.
class MessageHandler {
 public:
  // Frames without the identity. The answers go back to the sender, one message each.
  virtual std::vector<Frames> on_message(Frames frames) = 0;

 protected:
  ~MessageHandler() = default;
};

// A thread that receives at one bound address until it is stopped.
//
// Thread-safety: all methods may run at the same time.
class Listener {
 public:
  // `name` (at most 15 characters) names the thread; the handler outlives the listener. Errors:
  // those of Router::bind; limit (nofile).
  static Result<std::unique_ptr<Listener>> start(Router router, std::string name,
                                                 MessageHandler& handler);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const Endpoint& endpoint() const noexcept { return endpoint_; }
  uint64_t messages() const noexcept { return messages_.load(); }
  // Answers that the peer did not take at once.
  uint64_t answers_dropped() const noexcept { return answers_dropped_.load(); }
  uint64_t handler_failures() const noexcept { return handler_failures_.load(); }

 private:
  Listener(Router router, std::string name, MessageHandler& handler, UniqueFd wake);
  void run();
  void handle(Frames message);

  Router router_;  // Of the thread.
  const Endpoint endpoint_;
  const std::string name_;
  MessageHandler& handler_;
  UniqueFd wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> messages_{0};
  std::atomic<uint64_t> answers_dropped_{0};
  std::atomic<uint64_t> handler_failures_{0};
  std::thread thread_;
};

}  // namespace stagelink::zmq
