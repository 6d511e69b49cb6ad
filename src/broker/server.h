#pragma once

#include <map>
#include <string>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "broker/mappings.h"
#include "broker/sdk.h"
#include "broker/session.h"
#include "broker/shared_clients.h"
#include "broker/watch.h"

namespace stagelink::broker {

// Where a broker is found: store/yuanrong/channel/broker_lock.h.
struct BrokerPlace {
  UniqueFd listener;
  std::string path;
  UniqueFd claimed;
};

// Accepts the clients of one broker. The first client has made and bound the listening socket,
// under a lock on `path`.lock, before it started the broker; the broker ends, under the same lock,
// once nobody is connected. A client has gone when its socket ends or its process does, whatever
// children of it still hold.
//
// The thread of run() never waits for the library, which can be stuck for long once the worker has
// gone: what a client that has gone held is given back by another thread, and the end waits for
// that only for a while.
//
// Thread-safety: run() in one thread.
class Server {
 public:
  Server(BrokerPlace place, Sdk& sdk, Mappings& mappings);

  // Returns when the last client has gone and the socket's name is removed. Errors: invalid_state
  // (system).
  Status run();

 private:
  Status watch_fd(int fd);
  void accept_clients();
  // A connection that has not said hello yet, or a client.
  void read_from(int fd);
  void greet(int fd);
  bool serve(int fd);
  void watch_process(int fd);
  void drop(int fd);
  bool all_left();
  bool may_end();

  BrokerPlace place_;
  Mappings& mappings_;
  UniqueFd epoll_;
  std::map<int, UniqueFd> strangers_;
  std::map<int, UniqueFd> processes_;  // By the socket of the session.
  std::map<int, int> socket_of_;       // By the descriptor of the process.
  Deadline leave_by_ = Deadline::in(Duration::zero());
  Sessions sessions_;
  SharedClients clients_;
  Watcher watcher_;
};

}  // namespace stagelink::broker
