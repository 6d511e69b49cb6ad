#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "connector/zmq/curve_keys.h"
#include "connector/zmq/door.h"
#include "connector/zmq/library.h"
#include "stagelink/result.h"

namespace stagelink::zmq {

using Bytes = std::vector<std::byte>;
using Frames = std::vector<Bytes>;
using FrameSpan = std::span<const std::byte>;

// One ZeroMQ context: its thread does the input and output of all its sockets, each of which keeps
// it alive. With keys, its listeners admit only who holds the same, and it connects only to such;
// what passes is encrypted then. It cannot be used in a forked child.
//
// Thread-safety: all methods may run at the same time.
class Context {
 public:
  // Errors: limit (nofile); unsupported if there are keys and the library was built without CURVE.
  static Result<std::shared_ptr<Context>> create(std::shared_ptr<const Library> library,
                                                 std::shared_ptr<const CurveKeys> keys = nullptr);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Library& library() const noexcept { return *library_; }
  void* handle() const noexcept { return handle_; }
  const CurveKeys* keys() const noexcept { return keys_.get(); }
  Door* door() const noexcept { return door_.get(); }  // Null without keys.

 private:
  Context(std::shared_ptr<const Library> library, std::shared_ptr<const CurveKeys> keys,
          void* handle) noexcept;
  const std::shared_ptr<const Library> library_;
  const std::shared_ptr<const CurveKeys> keys_;
  void* const handle_;
  std::unique_ptr<Door> door_;
};

struct SocketLimits {
  int high_water = 1024;               // Messages queued for, and from, one peer.
  int64_t max_frame_bytes = 4 << 20;   // A peer that sends a longer frame is disconnected.
  size_t max_frames = 8;               // Further frames of a message are dropped unread.
  Duration linger = Duration::zero();  // How long a closed socket goes on sending.
};

// One socket of one thread at a time.
//
// Thread-safety: one call at a time; may move between threads.
class Socket {
 public:
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  // The frames of the next message; nullopt when none has come by the deadline or `wake_fd` (if not
  // negative) became readable. A message of more than max_frames comes cut to that many plus one.
  Result<std::optional<Frames>> receive(const Deadline& deadline, int wake_fd = -1);
  // All frames as one message. Errors: timed_out if it cannot be queued by the deadline;
  // unreachable.
  Status send(std::span<const FrameSpan> frames, const Deadline& deadline);

  void* handle() const noexcept { return handle_; }
  const Library& library() const noexcept { return context_->library(); }
  void close() noexcept;

 protected:
  static Result<Socket> create(std::shared_ptr<Context> context, int type,
                               const SocketLimits& limits, bool ipv6);
  Status set(int option, int value);
  Status show_keys(bool listens);  // Those of the context, if it has some.

 private:
  Socket(std::shared_ptr<Context> context, void* handle, const SocketLimits& limits) noexcept;
  Result<std::optional<Frames>> read_message();

  std::shared_ptr<Context> context_;
  void* handle_;
  SocketLimits limits_;
};

// Where a Router listens. With neither host nor interface: 127.0.0.1.
struct BindOptions {
  std::string host;       // An address of this host; "*", "0.0.0.0", "::" only if allowed.
  std::string interface;  // Whose address is taken when there is no host.
  uint16_t port = 0;      // 0: any free one.
  bool allow_wildcard = false;
};

// Bound; its messages begin with the identity of the peer that sent them, or is to have them.
//
// Thread-safety: as Socket.
class Router : public Socket {
 public:
  // Errors: invalid_argument (an address that is not ours, a wildcard that was not allowed),
  // already_exists (port_in_use), permission.
  static Result<Router> bind(std::shared_ptr<Context> context, const BindOptions& options,
                             const SocketLimits& limits = {});
  const Endpoint& endpoint() const noexcept { return endpoint_; }

 private:
  Router(Socket socket, Endpoint endpoint) noexcept;
  Endpoint endpoint_;
};

// Connected to one address. The connection is made, and made again, in the background; messages are
// taken only while there is one, so none waits for a peer that has died meanwhile.
//
// Thread-safety: as Socket.
class Dealer : public Socket {
 public:
  static Result<Dealer> connect(std::shared_ptr<Context> context, const Endpoint& peer,
                                const SocketLimits& limits = {});

 private:
  explicit Dealer(Socket socket) noexcept;
};

// Something to wait for: a socket that has a message or room for one, or a descriptor.
struct PollItem {
  const Socket* socket = nullptr;  // Null: `fd`.
  int fd = -1;
  bool want_read = false;
  bool want_write = false;
  bool readable = false;  // Set by poll().
  bool writable = false;
};

// Waits for the first of `items`. Ok without any set: the deadline has passed.
Status poll(const Library& library, std::span<PollItem> items, const Deadline& deadline);

}  // namespace stagelink::zmq
