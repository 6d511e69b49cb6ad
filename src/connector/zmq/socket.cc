#include "connector/zmq/socket.h"

#include <cerrno>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <zmq.h>

#include "engine/bind_address.h"

namespace stagelink::zmq {
namespace {

// A guest of a listener that does not say who it is by then leaves: each holds a descriptor.
constexpr Duration kGreetingTime = std::chrono::seconds(2);

// One frame, received and not yet copied.
class ReceivedFrame {
 public:
  explicit ReceivedFrame(const Functions& functions) noexcept : functions_(functions) {
    functions_.msg_init(&message_);
  }
  ~ReceivedFrame() { functions_.msg_close(&message_); }
  ReceivedFrame(const ReceivedFrame&) = delete;
  ReceivedFrame& operator=(const ReceivedFrame&) = delete;

  bool receive(void* socket) noexcept {
    return functions_.msg_recv(&message_, socket, ZMQ_DONTWAIT) >= 0;
  }
  bool more() noexcept { return functions_.msg_more(&message_) != 0; }
  Bytes bytes() {
    const auto* const data = static_cast<const std::byte*>(functions_.msg_data(&message_));
    return {data, data + functions_.msg_size(&message_)};
  }

 private:
  const Functions& functions_;
  zmq_msg_t message_;
};

std::string url_of(const Endpoint& endpoint) { return "tcp://" + endpoint.to_string(); }

bool is_ipv6(const std::string& host) { return host.find(':') != std::string::npos; }

int milliseconds(Duration duration) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

Result<Endpoint> listen_address(const BindOptions& options) {
  Endpoint address{options.host, options.port};
  if (address.host.empty() && options.interface.empty()) address.host = "127.0.0.1";
  if (address.host.empty()) {
    EngineOptions engine;
    engine.bind = "auto";
    engine.interface = options.interface;
    SL_ASSIGN(address, engine::bind_address(engine));
    address.port = options.port;
  }
  if (address.wildcard() && !options.allow_wildcard) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("listening on every address ({}) was not allowed", address.host));
  }
  return address;
}

// The port that was bound, from "tcp://host:port".
Result<uint16_t> bound_port(const Library& library, void* socket) {
  char text[256] = {};
  size_t size = sizeof text - 1;
  if (library.functions().getsockopt(socket, ZMQ_LAST_ENDPOINT, text, &size) != 0) {
    return library.last_error("reading the bound address");
  }
  const std::string_view url(text);
  const size_t colon = url.rfind(':');
  unsigned port = 0;
  for (const char c : url.substr(colon == std::string_view::npos ? url.size() : colon + 1)) {
    if (c < '0' || c > '9') return Status(Reason::kSystem, fmt::format("bound to {}", url));
    port = port * 10 + static_cast<unsigned>(c - '0');
  }
  return static_cast<uint16_t>(port);
}

}  // namespace

// --- Context ---

Result<std::shared_ptr<Context>> Context::create(std::shared_ptr<const Library> library,
                                                 std::shared_ptr<const CurveKeys> keys) {
  if (keys != nullptr && library->functions().has("curve") == 0) {
    return Status(Reason::kUnsupported,
                  fmt::format("ZeroMQ {} was built without CURVE, which a secret needs: install "
                              "Debian's libzmq5 or the Python package pyzmq",
                              library->version()));
  }
  void* const handle = library->functions().ctx_new();
  if (handle == nullptr) return library->last_error("a ZeroMQ context");
  // Above the library's 1023: the bounds of those who open sockets are narrower.
  library->functions().ctx_set(handle, ZMQ_MAX_SOCKETS, 8192);
  std::shared_ptr<Context> context(new Context(std::move(library), std::move(keys), handle));
  if (context->keys_ != nullptr) {
    SL_ASSIGN(context->door_, Door::open(context->library_, handle, context->keys_));
  }
  return context;
}

Context::Context(std::shared_ptr<const Library> library, std::shared_ptr<const CurveKeys> keys,
                 void* handle) noexcept
    : library_(std::move(library)), keys_(std::move(keys)), handle_(handle) {}

Context::~Context() {
  door_.reset();
  // Waits for the sockets' linger at most; all of them are closed.
  while (library_->functions().ctx_term(handle_) != 0 &&
         library_->functions().error_number() == EINTR) {
  }
}

// --- Socket ---

Result<Socket> Socket::create(std::shared_ptr<Context> context, int type,
                              const SocketLimits& limits, bool ipv6) {
  void* const handle = context->library().functions().socket(context->handle(), type);
  if (handle == nullptr) return context->library().last_error("a ZeroMQ socket");
  Socket socket(std::move(context), handle, limits);
  SL_TRY(socket.set(ZMQ_SNDHWM, limits.high_water));
  SL_TRY(socket.set(ZMQ_RCVHWM, limits.high_water));
  SL_TRY(socket.set(ZMQ_LINGER, milliseconds(limits.linger)));
  SL_TRY(socket.set(ZMQ_IPV6, ipv6 ? 1 : 0));
  SL_TRY(socket.set(ZMQ_TCP_KEEPALIVE, 1));
  const int64_t max_bytes = limits.max_frame_bytes;
  if (socket.library().functions().setsockopt(handle, ZMQ_MAXMSGSIZE, &max_bytes,
                                              sizeof max_bytes) != 0) {
    return socket.library().last_error("the bound of a ZeroMQ frame");
  }
  return socket;
}

Socket::Socket(std::shared_ptr<Context> context, void* handle, const SocketLimits& limits) noexcept
    : context_(std::move(context)), handle_(handle), limits_(limits) {}

Socket::Socket(Socket&& other) noexcept
    : context_(std::move(other.context_)),
      handle_(std::exchange(other.handle_, nullptr)),
      limits_(other.limits_) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    context_ = std::move(other.context_);
    handle_ = std::exchange(other.handle_, nullptr);
    limits_ = other.limits_;
  }
  return *this;
}

Socket::~Socket() { close(); }

void Socket::close() noexcept {
  if (handle_ != nullptr) library().functions().close(std::exchange(handle_, nullptr));
  context_.reset();
}

Status Socket::set(int option, int value) {
  if (library().functions().setsockopt(handle_, option, &value, sizeof value) == 0) return {};
  return library().last_error(fmt::format("option {} of a ZeroMQ socket", option));
}

Status Socket::show_keys(bool listens) {
  const CurveKeys* const keys = context_->keys();
  if (keys == nullptr) return {};
  const auto set_key = [&](int option, const CurveKey& key) {
    if (library().functions().setsockopt(handle_, option, key.data(), key.size()) == 0) {
      return Status();
    }
    return library().last_error("the keys of a ZeroMQ socket");
  };
  const CurvePair& own = listens ? keys->listener() : keys->caller();
  SL_TRY(set_key(ZMQ_CURVE_SECRETKEY, own.secret_key));
  if (listens) {
    SL_TRY(context_->door()->watch(handle_));
    return set(ZMQ_CURVE_SERVER, 1);
  }
  SL_TRY(set_key(ZMQ_CURVE_PUBLICKEY, own.public_key));
  return set_key(ZMQ_CURVE_SERVERKEY, keys->listener().public_key);
}

Result<std::optional<Frames>> Socket::receive(const Deadline& deadline, int wake_fd) {
  while (true) {
    auto message = read_message();
    if (!message.ok() || message->has_value()) return message;
    PollItem items[2] = {{.socket = this, .want_read = true}, {.fd = wake_fd, .want_read = true}};
    const size_t count = wake_fd >= 0 ? 2 : 1;
    SL_TRY(poll(library(), std::span(items, count), deadline));
    if (!items[0].readable) return std::optional<Frames>();
  }
}

// The parts of a message arrive together: once the first is there, none of the others is waited
// for.
Result<std::optional<Frames>> Socket::read_message() {
  Frames frames;
  for (bool more = true; more;) {
    ReceivedFrame frame(library().functions());
    if (!frame.receive(handle_)) {
      const int error = library().functions().error_number();
      if (error == EINTR) continue;
      if (error == EAGAIN && frames.empty()) return std::optional<Frames>();
      return library().last_error("receiving a ZeroMQ message");
    }
    more = frame.more();
    if (frames.size() <= limits_.max_frames) frames.push_back(frame.bytes());
  }
  return std::optional<Frames>(std::move(frames));
}

Status Socket::send(std::span<const FrameSpan> frames, const Deadline& deadline) {
  for (size_t i = 0; i < frames.size();) {
    // Once the first part is taken, the others are too.
    const int flags = ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    if (library().functions().send(handle_, frames[i].data(), frames[i].size(), flags) >= 0) {
      ++i;
      continue;
    }
    const int error = library().functions().error_number();
    if (error == EINTR) continue;
    if (error != EAGAIN || deadline.passed()) {
      return library().last_error("sending a ZeroMQ message");
    }
    PollItem item{.socket = this, .want_write = true};
    SL_TRY(poll(library(), std::span(&item, 1), deadline));
  }
  return {};
}

// --- Router, Dealer ---

Router::Router(Socket socket, Endpoint endpoint) noexcept
    : Socket(std::move(socket)), endpoint_(std::move(endpoint)) {}

Result<Router> Router::bind(std::shared_ptr<Context> context, const BindOptions& options,
                            const SocketLimits& limits) {
  SL_ASSIGN(Endpoint endpoint, listen_address(options));
  SL_ASSIGN(Socket socket, create(std::move(context), ZMQ_ROUTER, limits, is_ipv6(endpoint.host)));
  Router router(std::move(socket), std::move(endpoint));
  SL_TRY(router.set(ZMQ_HANDSHAKE_IVL, milliseconds(kGreetingTime)));
  // A reply to a peer that has gone, or does not read, fails instead of vanishing.
  SL_TRY(router.set(ZMQ_ROUTER_MANDATORY, 1));
  SL_TRY(router.show_keys(true));
  const std::string url = url_of(router.endpoint_);
  if (router.library().functions().bind(router.handle(), url.c_str()) != 0) {
    return router.library().last_error("listening on " + url);
  }
  SL_ASSIGN(router.endpoint_.port, bound_port(router.library(), router.handle()));
  return router;
}

Dealer::Dealer(Socket socket) noexcept : Socket(std::move(socket)) {}

Result<Dealer> Dealer::connect(std::shared_ptr<Context> context, const Endpoint& peer,
                               const SocketLimits& limits) {
  SL_ASSIGN(Socket socket, create(std::move(context), ZMQ_DEALER, limits, is_ipv6(peer.host)));
  Dealer dealer(std::move(socket));
  SL_TRY(dealer.set(ZMQ_IMMEDIATE, 1));
  SL_TRY(dealer.show_keys(false));
  SL_TRY(dealer.set(ZMQ_RECONNECT_IVL, 50));
  SL_TRY(dealer.set(ZMQ_RECONNECT_IVL_MAX, 1000));
  const std::string url = url_of(peer);
  if (dealer.library().functions().connect(dealer.handle(), url.c_str()) != 0) {
    return dealer.library().last_error("connecting to " + url);
  }
  return dealer;
}

// --- poll ---

Status poll(const Library& library, std::span<PollItem> items, const Deadline& deadline) {
  std::vector<zmq_pollitem_t> raw(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    raw[i].socket = items[i].socket != nullptr ? items[i].socket->handle() : nullptr;
    raw[i].fd = items[i].fd;
    raw[i].events = static_cast<short>((items[i].want_read ? ZMQ_POLLIN : 0) |
                                       (items[i].want_write ? ZMQ_POLLOUT : 0));
  }
  while (library.functions().poll(raw.data(), static_cast<int>(raw.size()), deadline.left_ms()) <
         0) {
    if (library.functions().error_number() != EINTR) return library.last_error("zmq_poll");
  }
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].readable = (raw[i].revents & ZMQ_POLLIN) != 0;
    items[i].writable = (raw[i].revents & ZMQ_POLLOUT) != 0;
  }
  return {};
}

}  // namespace stagelink::zmq
