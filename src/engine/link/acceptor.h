#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"
#include "transport/poller.h"
#include "wire/hello.h"

namespace stagelink::engine {

class EngineCore;

// How a connection came.
enum class Carrier : uint8_t { kUnix, kTcp };

// Accepts connections on the UNIX socket and on the TCP listener, and hears their hello. Until
// then a connection is a Guest: at most kMaxGuests on each, so that strangers on the network do not
// keep out the peers of this host; each with a deadline. Where there are as many, one of the origin
// with most of them has to leave for a newcomer from elsewhere, so that one host or process cannot
// keep out the others.
//
// Thread-safety: create() and addresses from any thread; the rest on the progress loop.
class Acceptor final {
 public:
  // A connection whose hello was accepted.
  using Greeted = std::function<void(UniqueFd fd, Carrier carrier, const wire::Hello& hello)>;

  // Binds and listens; nothing is accepted before start(). Errors: already_exists (port_in_use),
  // invalid_argument, permission, limit.
  static Result<std::unique_ptr<Acceptor>> create(EngineCore& core, const std::string& socket_path,
                                                  const Endpoint& bind);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  Status start(Greeted greeted);
  void stop() noexcept;
  // Stops or resumes taking new connections (when fds run out).
  void pause(bool paused) noexcept;
  // Tells the other side why, as far as its socket takes it.
  void refuse(int fd, const Status& why) const;
  // Drops guests that have not said hello in time. True while there are guests.
  bool tick();
  const Endpoint& bound() const noexcept { return bound_; }
  const std::string& socket_path() const noexcept { return socket_path_; }

  static constexpr size_t kMaxGuests = 64;

 private:
  class Listener;
  class Guest;

  Acceptor(EngineCore& core, std::string socket_path) noexcept;
  void accept_from(int listener, Carrier carrier);
  Guest* one_too_many(Carrier carrier, Guest& newcomer) const;
  void turn_away(Guest& guest);
  void dismiss(Guest& guest) noexcept;
  void hear(Guest& guest, const wire::Hello& hello);
  Status check_hello(int fd, Carrier carrier, const wire::Hello& hello) const;
  Status check_user(int fd) const;
  void unlink_socket() noexcept;

  EngineCore& core_;
  const std::string socket_path_;
  Endpoint bound_;
  Greeted greeted_;
  bool socket_bound_ = false;
  std::unique_ptr<Listener> unix_;
  std::unique_ptr<Listener> tcp_;
  std::list<std::unique_ptr<Guest>> guests_;
};

}  // namespace stagelink::engine
