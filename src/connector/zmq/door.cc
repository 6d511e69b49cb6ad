#include "connector/zmq/door.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <pthread.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <zmq.h>

#include "base/log.h"

namespace stagelink::zmq {
namespace {

constexpr const char* kZapAddress = "inproc://zeromq.zap.01";
constexpr std::string_view kZapVersion = "1.0";
// A key that is refused is counted where it is.
constexpr int kFailures =
    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;

// The frames of a request, by their place.
enum ZapFrame : size_t { kVersion, kRequestId, kDomain, kAddress, kIdentity, kMechanism, kKey };

using TextFrames = std::vector<std::string>;

// One message; empty when there is none.
TextFrames read_frames(const Functions& functions, void* socket) {
  TextFrames frames;
  for (bool more = true; more;) {
    zmq_msg_t message;
    functions.msg_init(&message);
    if (functions.msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
      functions.msg_close(&message);
      return {};
    }
    frames.emplace_back(static_cast<const char*>(functions.msg_data(&message)),
                        functions.msg_size(&message));
    more = functions.msg_more(&message) != 0;
    functions.msg_close(&message);
  }
  return frames;
}

bool shows_key(const TextFrames& request, const CurveKey& key) {
  return request.size() == kKey + 1 && request[kVersion] == kZapVersion &&
         request[kMechanism] == "CURVE" && request[kKey].size() == key.size() &&
         sodium_memcmp(request[kKey].data(), key.data(), key.size()) == 0;
}

}  // namespace

Result<std::unique_ptr<Door>> Door::open(std::shared_ptr<const Library> library, void* context,
                                         std::shared_ptr<const CurveKeys> keys) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Status(Reason::kNofile, "no descriptor for the authentication of ZeroMQ");
  const Functions& functions = library->functions();
  void* const socket = functions.socket(context, ZMQ_REP);
  if (socket == nullptr) return library->last_error("a ZeroMQ socket");
  const int linger = 0;
  if (functions.setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
      functions.bind(socket, kZapAddress) != 0) {
    Status why = library->last_error("the authentication of ZeroMQ");
    functions.close(socket);
    return why;
  }
  std::unique_ptr<Door> door(
      new Door(std::move(library), context, std::move(keys), socket, std::move(wake)));
  door->thread_ = std::thread([self = door.get()] { self->run(); });
  return door;
}

Door::Door(std::shared_ptr<const Library> library, void* context,
           std::shared_ptr<const CurveKeys> keys, void* socket, UniqueFd wake) noexcept
    : library_(std::move(library)),
      context_(context),
      keys_(std::move(keys)),
      socket_(socket),
      wake_(std::move(wake)) {}

Door::~Door() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
  take_watched();
  for (void* const events : events_) library_->functions().close(events);
  library_->functions().close(socket_);
}

Status Door::watch(void* listener) {
  const Functions& functions = library_->functions();
  MutexLock lock(mutex_);
  const std::string address = fmt::format("inproc://stagelink-door-{}", watched_++);
  if (functions.socket_monitor(listener, address.c_str(), kFailures | ZMQ_EVENT_MONITOR_STOPPED) <
      0) {
    return library_->last_error("watching a ZeroMQ socket");
  }
  void* const events = functions.socket(context_, ZMQ_PAIR);
  if (events == nullptr || functions.connect(events, address.c_str()) != 0) {
    Status why = library_->last_error("watching a ZeroMQ socket");
    if (events != nullptr) functions.close(events);
    return why;
  }
  new_events_.push_back(events);
  ::eventfd_write(wake_.get(), 1);
  return {};
}

// False: the door is to be closed.
bool Door::take_watched() {
  eventfd_t ignored = 0;
  ::eventfd_read(wake_.get(), &ignored);
  MutexLock lock(mutex_);
  events_.insert(events_.end(), new_events_.begin(), new_events_.end());
  new_events_.clear();
  return !closing_;
}

void Door::run() {
  ::pthread_setname_np(::pthread_self(), "sl-zmq-door");
  while (true) {
    std::vector<zmq_pollitem_t> items(2 + events_.size());
    items[0] = {.socket = socket_, .fd = -1, .events = ZMQ_POLLIN, .revents = 0};
    items[1] = {.socket = nullptr, .fd = wake_.get(), .events = ZMQ_POLLIN, .revents = 0};
    for (size_t i = 0; i < events_.size(); ++i) {
      items[2 + i] = {.socket = events_[i], .fd = -1, .events = ZMQ_POLLIN, .revents = 0};
    }
    const int count = library_->functions().poll(items.data(), static_cast<int>(items.size()), -1);
    if (count < 0 && library_->functions().error_number() == EINTR) continue;
    if (count < 0) return;
    if (items[0].revents != 0) {
      while (answer_one()) {
      }
    }
    for (size_t i = events_.size(); i-- > 0;) {
      if (items[2 + i].revents == 0 || read_event(events_[i])) continue;
      library_->functions().close(events_[i]);
      events_.erase(events_.begin() + static_cast<ptrdiff_t>(i));
    }
    if (items[1].revents != 0 && !take_watched()) return;
  }
}

// False: its listener has been closed.
bool Door::read_event(void* events) {
  const TextFrames frames = read_frames(library_->functions(), events);
  uint16_t event = 0;  // Of this host: in its own byte order.
  if (frames.empty() || frames[0].size() < sizeof event) return true;
  std::memcpy(&event, frames[0].data(), sizeof event);
  if (event == ZMQ_EVENT_MONITOR_STOPPED) return false;
  refuse(frames.size() > 1 ? frames[1] : "?", "does not speak CURVE with these keys");
  return true;
}

void Door::refuse(std::string_view address, std::string_view why) {
  refused_.fetch_add(1);
  log_failure("zmq", Status(Reason::kAuthentication, fmt::format("a peer at {} {}", address, why)));
}

bool Door::answer_one() {
  const Functions& functions = library_->functions();
  const TextFrames request = read_frames(functions, socket_);
  if (request.empty()) return false;
  const bool known = shows_key(request, keys_->caller().public_key);
  if (known) {
    admitted_.fetch_add(1);
  } else {
    refuse(request.size() > kAddress ? request[kAddress] : "?", "does not hold the secret");
  }
  const std::array<std::string_view, 6> answer = {
      kZapVersion,
      request.size() > kRequestId ? std::string_view(request[kRequestId]) : "",
      known ? "200" : "400",
      known ? "OK" : "No access",
      "",
      ""};
  for (size_t i = 0; i < answer.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < answer.size() ? ZMQ_SNDMORE : 0);
    if (functions.send(socket_, answer[i].data(), answer[i].size(), flags) < 0) return false;
  }
  return true;
}

}  // namespace stagelink::zmq
