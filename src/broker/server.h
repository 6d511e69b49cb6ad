#pragma once

#include <string>

#include "base/unique_fd.h"
#include "broker/mappings.h"
#include "broker/sdk.h"
#include "broker/session.h"
#include "broker/shared_clients.h"
#include "broker/watch.h"

namespace stagelink::broker {

// Accepts the clients of one broker. The first client has made and bound the listening socket,
// under a lock on `path`.lock, before it started the broker; the broker ends, under the same lock,
// once nobody is connected.
//
// Thread-safety: run() in one thread.
class Server {
 public:
  Server(UniqueFd listener, std::string path, Sdk& sdk, Mappings& mappings);

  // Returns when the last client has gone and the socket's name is removed. Errors: invalid_state
  // (system).
  Status run();

 private:
  Status watch_fd(int fd);
  void accept_clients();
  // A connection that has not said hello yet, or a client.
  void read_from(int fd);
  void greet(int fd);
  void drop(int fd);
  bool may_end();

  UniqueFd listener_;
  const std::string path_;
  Mappings& mappings_;
  UniqueFd epoll_;
  std::map<int, UniqueFd> strangers_;
  Sessions sessions_;
  SharedClients clients_;
  Watcher watcher_;
};

}  // namespace stagelink::broker
