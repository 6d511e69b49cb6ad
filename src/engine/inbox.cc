#include "engine/inbox.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>

#include "base/futex.h"

namespace stagelink::engine {
namespace {

// Departed peers whose last messages wait for a program that takes none: the oldest goes first.
constexpr size_t kMaxDeparted = 256;

// Peers share the eventfd and could make it block: asked first, each time.
bool ready(int fd, short events) noexcept {
  pollfd waiting{fd, events, 0};
  return ::poll(&waiting, 1, 0) == 1;
}

bool departed(const std::shared_ptr<InboundRing>& ring) { return ring->departed.load(); }

}  // namespace

InboundRing::InboundRing(InstanceId source, std::string source_name,
                         memory::SharedPages page) noexcept
    : source_(source),
      source_name_(std::move(source_name)),
      page_(std::move(page)),
      consumer_(this->page()) {}

Status InboundRing::drain(size_t max, std::vector<Notification>& out) {
  if (spoilt_) return Status();
  std::vector<transport::RingMessage> messages;
  Status status = consumer_.pop(max, messages);
  spoilt_ = !status.ok();
  for (auto& message : messages) {
    out.push_back({source_, source_name_, std::move(message.payload), message.outcome});
  }
  if (on_taken && !messages.empty()) on_taken(messages.size());
  return status;
}

Inbox::Inbox(memory::SharedPages doorbell, UniqueFd event, Report report) noexcept
    : report_(std::move(report)), doorbell_(std::move(doorbell)), event_(std::move(event)) {}

Result<std::unique_ptr<Inbox>> Inbox::create(Report report) {
  auto doorbell = memory::SharedPages::create("stagelink-doorbell", wire::kDoorbellBytes,
                                              memory::SharedPages::Peers::kMayWrite);
  if (!doorbell.ok()) return doorbell.status();
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return Status(Reason::kNofile, "eventfd: too many open files");
  return std::unique_ptr<Inbox>(
      new Inbox(*std::move(doorbell), std::move(event), std::move(report)));
}

void Inbox::add(std::shared_ptr<InboundRing> ring) {
  MutexLock lock(mutex_);
  if (std::count_if(rings_.begin(), rings_.end(), departed) >= ptrdiff_t{kMaxDeparted}) {
    const auto oldest = std::find_if(rings_.begin(), rings_.end(), departed);
    if (!(*oldest)->empty()) {
      report_("notifications of " + (*oldest)->source_name(),
              Status(Reason::kRingFull, "dropped: the peer has gone, and nobody takes them"));
    }
    rings_.erase(oldest);
  }
  rings_.push_back(std::move(ring));
}

std::vector<std::shared_ptr<InboundRing>> Inbox::rings() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<InboundRing>> live;
  live.reserve(rings_.size());
  for (const auto& ring : rings_) {
    if (!ring->departed.load()) live.push_back(ring);
  }
  return live;
}

size_t Inbox::size() const {
  MutexLock lock(mutex_);
  return rings_.size();
}

std::vector<Notification> Inbox::take(size_t max, const Deadline& deadline) {
  std::vector<Notification> out;
  while (drain(max, out) == 0 && !closed_.load() && !deadline.passed()) {
    sleepers_.fetch_add(1);
    // Sequentially consistent: before the look, as in SharedView::ring_bell().
    armed().fetch_or(wire::kBellFutex);
    if (drain(max, out) == 0 && !closed_.load()) sleep(deadline);
    sleepers_.fetch_sub(1);
  }
  return out;
}

// Until the word loses kBellFutex, which every bell does. Others may set kBellEvent meanwhile; the
// futex then wakes at once, and the caller looks again.
void Inbox::sleep(const Deadline& deadline) noexcept {
  const uint32_t word = armed().load();
  if ((word & wire::kBellFutex) == 0) return;
  futex_wait(armed(), word, deadline.left(), FutexScope::kShared);
}

size_t Inbox::drain(size_t max, std::vector<Notification>& out) {
  if (fileno_mode_.load()) {
    clear_event();
    armed().fetch_or(wire::kBellEvent);
  }
  MutexLock lock(mutex_);
  const size_t count = rings_.size();
  for (size_t i = 0; i < count && out.size() < max; ++i) {
    InboundRing& ring = *rings_[(next_ring_ + i) % count];
    const Status status = ring.drain(max - out.size(), out);
    if (status.ok()) continue;
    report_("notifications from " + ring.source_name() + " (" + ring.source().to_string() + ")",
            status);
  }
  if (count != 0) next_ring_ = (next_ring_ + 1) % count;
  // What stays behind must keep the fd readable.
  if (fileno_mode_.load() && out.size() >= max) ring_bell();
  return out.size();
}

int Inbox::arm_fileno() {
  {
    MutexLock lock(mutex_);
    if (fds_closed_) return -1;
    fileno_mode_.store(true);
  }
  armed().fetch_or(wire::kBellEvent);
  ring_bell();  // Something may have come before.
  return event_.get();
}

// Sequentially consistent, after the ring's tail: a sleeper arms, then looks at the tail.
void Inbox::arrived() noexcept {
  if (armed().load() != 0) ring_bell();
}

void Inbox::tick() {
  MutexLock lock(mutex_);
  std::erase_if(rings_, [](const auto& ring) { return ring->departed.load() && ring->empty(); });
  if (sleepers_.load() == 0 && !fileno_mode_.load()) return;
  if (std::any_of(rings_.begin(), rings_.end(), [](const auto& r) { return !r->empty(); })) {
    ring_bell();
  }
}

void Inbox::close() noexcept {
  closed_.store(true);
  ring_bell();
}

void Inbox::close_fds() {
  MutexLock lock(mutex_);
  fds_closed_ = true;
  doorbell_.close_fd();
  if (!fileno_mode_.load()) event_.reset();
}

void Inbox::clear_event() noexcept {
  uint64_t count = 0;
  while (ready(event_.get(), POLLIN) && ::read(event_.get(), &count, sizeof count) < 0 &&
         errno == EINTR) {
  }
}

void Inbox::ring_bell() noexcept {
  armed().store(0);
  futex_wake_all(armed(), FutexScope::kShared);
  if (!fileno_mode_.load()) return;
  const uint64_t one = 1;
  while (ready(event_.get(), POLLOUT) && ::write(event_.get(), &one, sizeof one) < 0 &&
         errno == EINTR) {
  }
}

}  // namespace stagelink::engine
