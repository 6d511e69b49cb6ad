#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "connector/zmq/socket.h"

namespace stagelink::zmq {

struct SenderOptions {
  size_t max_peers = 1024;    // Sockets; the one that is idle for longest makes room.
  size_t max_queued = 65536;  // Messages, of all peers.
  Duration linger = std::chrono::milliseconds(200);  // For what is under way at the end.
};

// Small messages to many peers, a socket for each address. A peer that does not answer delays
// nobody but itself. Messages to one peer keep their order.
//
// What a connection takes at once is sent by the caller, which saves waking a thread; the rest
// waits with the senders' own thread.
//
// Thread-safety: all methods may run at the same time.
class Senders {
 public:
  // Ok: handed to a connection that stood. Runs on the senders' thread, on that of send() before it
  // returns, or in close(); without locks of the senders.
  using Done = std::function<void(const Status&)>;

  static Result<std::unique_ptr<Senders>> create(std::shared_ptr<Context> context,
                                                 const SenderOptions& options = {});
  ~Senders();
  Senders(const Senders&) = delete;
  Senders& operator=(const Senders&) = delete;

  // Never waits. `done`, if given, is called once. Past `timeout` it is told timed_out. Errors (and
  // then no call): limit, invalid_state (closed).
  Status send(const Endpoint& peer, Bytes frame, Duration timeout, Done done = {});
  // Waits for the outcome.
  Status send_and_wait(const Endpoint& peer, Bytes frame, Duration timeout);

  // What is queued fails with closed; idempotent.
  void close();

  size_t peers() const noexcept { return peers_open_.load(); }
  uint64_t sent() const noexcept { return sent_.load(); }
  uint64_t failed() const noexcept { return failed_.load(); }

 private:
  struct Item {
    Endpoint peer;
    Bytes frame;
    Deadline deadline;
    Done done;
  };
  struct Ended {
    Item item;
    Status outcome;
  };
  struct Peer;

  Senders(std::shared_ptr<Context> context, const SenderOptions& options, UniqueFd wake);
  bool send_now(Item& item);
  void run();
  bool push_all();
  void take_queued();
  Peer* find_or_open(const Endpoint& peer, Status& why);
  bool make_room();
  void push(Peer& peer);
  Deadline wait_limit() const;
  void wait_for_room(bool peers_wait);
  void finish(Item item, const Status& outcome);

  const std::shared_ptr<Context> context_;
  const SenderOptions options_;
  UniqueFd wake_;
  std::atomic<size_t> peers_open_{0};
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> failed_{0};
  std::atomic<size_t> pending_{0};  // Queued or with a peer.

  Mutex mutex_;
  std::list<Item> queued_ SL_GUARDED_BY(mutex_);
  bool closing_ SL_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;

  // Held while sockets are used; the thread sleeps without it unless a peer has messages waiting.
  std::mutex sockets_;
  std::map<std::string, std::unique_ptr<Peer>> peers_;  // By address. Under sockets_.
  std::list<Ended> ended_;                              // Not yet reported. Under sockets_.
  std::thread thread_;
};

}  // namespace stagelink::zmq
