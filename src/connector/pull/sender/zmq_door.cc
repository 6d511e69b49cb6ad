#include "connector/pull/sender/zmq_door.h"

#include <array>
#include <exception>

#include <pthread.h>
#include <sys/eventfd.h>

#include "base/log.h"

namespace stagelink::pull {
namespace {

constexpr size_t kMaxOutbox = 65'536;
constexpr Duration kZmqPause = std::chrono::milliseconds(100);

}  // namespace

class ZmqDoor::Peer final : public Asker {
 public:
  Peer(zmq::Bytes identity, std::shared_ptr<Outbox> outbox) noexcept
      : identity_(std::move(identity)), outbox_(std::move(outbox)) {}

  bool answer(MessageSpan message) noexcept override {
    try {
      MutexLock lock(outbox_->mutex);
      if (outbox_->closed || outbox_->answers.size() >= kMaxOutbox) return false;
      outbox_->answers.emplace_back(identity_, Message(message.begin(), message.end()));
    } catch (const std::exception&) {
      return false;  // No memory.
    }
    if (outbox_->thread.load() != std::this_thread::get_id()) {
      ::eventfd_write(outbox_->wake.get(), 1);
    }
    return true;
  }

 private:
  const zmq::Bytes identity_;
  const std::shared_ptr<Outbox> outbox_;
};

Result<std::unique_ptr<ZmqDoor>> ZmqDoor::open(zmq::Router router) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Status(Reason::kNofile, "no descriptor for the control port");
  return std::unique_ptr<ZmqDoor>(
      new ZmqDoor(std::move(router), std::make_shared<Outbox>(std::move(wake))));
}

ZmqDoor::ZmqDoor(zmq::Router router, std::shared_ptr<Outbox> outbox) noexcept
    : router_(std::move(router)), endpoint_(router_.endpoint()), outbox_(std::move(outbox)) {}

ZmqDoor::~ZmqDoor() { stop(); }

void ZmqDoor::stop() {
  stopping_.store(true);
  ::eventfd_write(outbox_->wake.get(), 1);
  if (thread_.joinable()) thread_.join();
  router_.close();
  MutexLock lock(outbox_->mutex);
  outbox_->closed = true;
  outbox_->answers.clear();
}

void ZmqDoor::start(Desk& desk, std::function<void()> after_message) {
  desk_ = &desk;
  after_message_ = std::move(after_message);
  thread_ = std::thread([this] { run(); });
}

void ZmqDoor::run() {
  ::pthread_setname_np(::pthread_self(), "sl-pull-zmq");
  outbox_->thread.store(std::this_thread::get_id());
  while (!stopping_.load()) {
    auto message = router_.receive(Deadline::in(Deadline::kLongest), outbox_->wake.get());
    if (!message.ok()) {
      log_failure("pull control port", message.status());
      zmq::PollItem item{.fd = outbox_->wake.get(), .want_read = true};
      (void)zmq::poll(router_.library(), std::span(&item, 1), Deadline::in(kZmqPause));
    } else if (message->has_value()) {
      handle(std::move(**message));
    } else {
      eventfd_t ignored = 0;
      ::eventfd_read(outbox_->wake.get(), &ignored);
    }
    send_all();
  }
  send_all();
}

void ZmqDoor::handle(zmq::Frames message) {
  messages_.fetch_add(1);
  if (message.size() < 2) return;  // An identity alone.
  try {
    const auto peer = std::make_shared<Peer>(std::move(message.front()), outbox_);
    desk_->handle(message.back(), peer, /*greets=*/true);
    after_message_();
  } catch (const std::exception& error) {
    log(LogLevel::kError, "pull control port", error.what());
  }
}

void ZmqDoor::send_all() {
  std::vector<std::pair<zmq::Bytes, Message>> answers;
  {
    MutexLock lock(outbox_->mutex);
    answers.swap(outbox_->answers);
  }
  for (const auto& [identity, answer] : answers) send(identity, answer);
}

void ZmqDoor::send(const zmq::Bytes& identity, MessageSpan answer) {
  // A REQ socket wants the empty frame.
  const std::array<zmq::FrameSpan, 3> frames = {identity, zmq::FrameSpan(), answer};
  if (!router_.send(frames, Deadline::in(Duration::zero())).ok()) outbox_->dropped.fetch_add(1);
}

}  // namespace stagelink::pull
