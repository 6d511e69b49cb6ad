#include "connector/zmq/listener.h"

#include <exception>
#include <utility>

#include <pthread.h>
#include <sys/eventfd.h>

#include "base/log.h"

namespace stagelink::zmq {
namespace {

// After a failure of the socket itself, so that one which repeats does not eat a processor.
constexpr Duration kPauseAfterFailure = std::chrono::milliseconds(100);

}  // namespace

Result<std::unique_ptr<Listener>> Listener::start(Router router, std::string name,
                                                  MessageHandler& handler) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Status(Reason::kNofile, "no descriptor for a listener");
  std::unique_ptr<Listener> listener(
      new Listener(std::move(router), std::move(name), handler, std::move(wake)));
  listener->thread_ = std::thread([self = listener.get()] { self->run(); });
  return listener;
}

Listener::Listener(Router router, std::string name, MessageHandler& handler, UniqueFd wake)
    : router_(std::move(router)),
      endpoint_(router_.endpoint()),
      name_(std::move(name)),
      handler_(handler),
      wake_(std::move(wake)) {}

Listener::~Listener() {
  stopping_.store(true);
  ::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void Listener::run() {
  ::pthread_setname_np(::pthread_self(), name_.c_str());
  while (!stopping_.load()) {
    auto message = router_.receive(Deadline::in(Deadline::kLongest), wake_.get());
    if (!message.ok()) {
      log_failure(name_, message.status());
      PollItem item{.fd = wake_.get(), .want_read = true};
      (void)poll(router_.library(), std::span(&item, 1), Deadline::in(kPauseAfterFailure));
    } else if (message->has_value()) {
      handle(std::move(**message));
    }
  }
}

void Listener::handle(Frames message) {
  messages_.fetch_add(1);
  try {
    Bytes identity = std::move(message.front());
    message.erase(message.begin());
    for (const Frames& answer : handler_.on_message(std::move(message))) {
      std::vector<FrameSpan> frames = {identity};
      frames.insert(frames.end(), answer.begin(), answer.end());
      if (!router_.send(frames, Deadline::in(Duration::zero())).ok()) {
        answers_dropped_.fetch_add(1);
        return;
      }
    }
  } catch (const std::exception& error) {
    handler_failures_.fetch_add(1);
    log(LogLevel::kError, name_, error.what());
  }
}

}  // namespace stagelink::zmq
