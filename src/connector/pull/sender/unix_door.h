#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "connector/pull/sender/desk.h"

namespace stagelink::pull {

// Where receivers of this host ask: a SOCK_SEQPACKET socket in the runtime directory, for processes
// of this user. A receiver whose connection ends has lost the claims that it made through it. Its
// thread is also the one that ends what has come to its time.
//
// Thread-safety: all methods may run at the same time.
class UnixDoor {
 public:
  // Its socket goes with the entries of the engine, should this process die. The table and the desk
  // outlive it. Errors: those of runtime_dir(); limit (nofile).
  static Result<std::unique_ptr<UnixDoor>> open(const std::string& runtime_dir,
                                                const InstanceId& engine, OfferTable& table);
  ~UnixDoor();
  UnixDoor(const UnixDoor&) = delete;
  UnixDoor& operator=(const UnixDoor&) = delete;

  const std::string& path() const noexcept { return path_; }
  void start(Desk& desk);
  // Something has been put or claimed that ends by time: the thread may be sleeping for too long.
  void nudge() noexcept;
  // Nobody is answered any more. Idempotent; by one thread at a time.
  void stop();
  uint64_t messages() const noexcept { return messages_.load(); }
  uint64_t connections() const noexcept { return connected_.load(); }

 private:
  class Connection;
  UnixDoor(std::string directory, std::string path, UniqueFd listener, UniqueFd epoll,
           UniqueFd wake, OfferTable& table) noexcept;
  void run();
  void accept_all();
  void serve(int fd, uint32_t events);
  void end(int fd);
  void sweep();
  int sleep_ms();

  const std::string directory_;
  const std::string path_;
  UniqueFd listener_;
  UniqueFd epoll_;
  UniqueFd wake_;
  OfferTable& table_;
  Desk* desk_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> sleeps_until_{0};  // Nanoseconds of the clock.
  std::atomic<uint64_t> messages_{0};
  std::atomic<uint64_t> connected_{0};
  std::map<int, std::shared_ptr<Connection>> connections_;  // Of the thread.
  Message buffer_;                                          // Of the thread.
  std::thread thread_;
};

}  // namespace stagelink::pull
