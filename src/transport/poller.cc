#include "transport/poller.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace stagelink::transport {
namespace {

constexpr int kEventsPerRound = 64;

Status epoll_failure(const char* call, int error) {
  const std::string text = fmt::format("{}: {}", call, std::strerror(error));
  if (error == EMFILE || error == ENFILE) return Status(Reason::kNofile, text);
  if (error == ENOSPC) {
    return Status(Reason::kLimit, text + "; raise /proc/sys/fs/epoll/max_user_watches");
  }
  if (error == ENOMEM) return Status(Reason::kLimit, text);
  return Status(Reason::kSystem, text);
}

// Rounded up, so that the loop does not spin through the last millisecond of a deadline.
int to_epoll_timeout(Duration timeout) noexcept {
  constexpr int64_t kLongestMs = 1'000'000'000;
  const int64_t ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, kLongestMs));
}

}  // namespace

Result<std::unique_ptr<Poller>> Poller::create() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return epoll_failure("epoll_create1", errno);
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return epoll_failure("eventfd", errno);
  std::unique_ptr<Poller> poller(new Poller(std::move(epoll), std::move(event)));
  SL_TRY(poller->add(poller->event_.get(), EPOLLIN, nullptr));
  return poller;
}

Poller::Poller(UniqueFd epoll, UniqueFd event) noexcept
    : epoll_(std::move(epoll)), event_(std::move(event)) {}

Status Poller::add(int fd, uint32_t epoll_events, PollHandler* handler) {
  epoll_event event{.events = epoll_events, .data = {.ptr = handler}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return epoll_failure("epoll_ctl add", errno);
}

Status Poller::modify(int fd, uint32_t epoll_events, PollHandler* handler) {
  epoll_event event{.events = epoll_events, .data = {.ptr = handler}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return {};
  return epoll_failure("epoll_ctl modify", errno);
}

void Poller::remove(int fd, PollHandler* handler) noexcept {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  removed_.push_back(handler);
}

void Poller::run_once(Duration timeout) {
  run_tasks();
  removed_.clear();
  // Partner of post(): whoever pushes after this store sees it and wakes us; whoever pushed before
  // it is seen by the load.
  asleep_.store(true);
  const bool idle = posted_.load() == nullptr;
  std::array<epoll_event, kEventsPerRound> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsPerRound,
                                 idle ? to_epoll_timeout(timeout) : 0);
  asleep_.store(false);
  for (int i = 0; i < count; ++i) {
    auto* handler = static_cast<PollHandler*>(events[static_cast<size_t>(i)].data.ptr);
    if (handler == nullptr) {
      uint64_t rings = 0;
      [[maybe_unused]] const ssize_t got = ::read(event_.get(), &rings, sizeof(rings));
    } else if (!was_removed(handler)) {
      handler->on_ready(events[static_cast<size_t>(i)].events);
    }
  }
  run_tasks();
}

void Poller::post(PollTask& task) noexcept {
  PollTask* head = posted_.load();
  do {
    task.next_ = head;
  } while (!posted_.compare_exchange_weak(head, &task));
  if (asleep_.exchange(false)) wake();
}

void Poller::wake() noexcept {
  // Counted before the look, as close() looks after it has closed: it sees us, or we see it.
  wakers_.fetch_add(1);
  if (!closed_.load()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = ::write(event_.get(), &one, sizeof(one));
  }
  wakers_.fetch_sub(1);
}

void Poller::close() noexcept {
  closed_.store(true);
  // The number may soon be another file's. A write to an eventfd that does not block is short.
  while (wakers_.load() != 0) std::this_thread::yield();
  event_.reset();
  epoll_.reset();
}

bool Poller::forget(PollTask& task) noexcept {
  take_posted();
  for (PollTask** at = &ready_; *at != nullptr; at = &(*at)->next_) {
    if (*at != &task) continue;
    *at = task.next_;
    if (*at == nullptr) ready_end_ = at;
    return true;
  }
  return false;
}

// Runs what was posted up to now; tasks that are posted meanwhile wait for the next call, so that a
// task that posts itself does not keep the loop from its events.
void Poller::run_tasks() {
  take_posted();
  PollTask** const last = ready_end_;
  while (ready_ != nullptr) {
    PollTask* task = ready_;
    ready_ = task->next_;
    const bool was_last = &task->next_ == last;
    if (ready_ == nullptr) ready_end_ = &ready_;
    task->run();
    if (was_last) break;
  }
}

// Moves posted_ behind ready_, oldest first.
void Poller::take_posted() noexcept {
  PollTask* newest = posted_.exchange(nullptr);
  if (newest == nullptr) return;
  PollTask* oldest = nullptr;
  for (PollTask* at = newest; at != nullptr;) {
    PollTask* const older = at->next_;
    at->next_ = oldest;
    oldest = at;
    at = older;
  }
  *ready_end_ = oldest;
  ready_end_ = &newest->next_;
}

bool Poller::was_removed(const PollHandler* handler) const noexcept {
  return std::find(removed_.begin(), removed_.end(), handler) != removed_.end();
}

}  // namespace stagelink::transport
