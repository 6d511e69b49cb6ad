#include "transport/fault/fault_posted_transport.h"

#include <algorithm>
#include <utility>

#include "transport/fault/bit_flip.h"

namespace stagelink::transport {

// Stands for a request in the transport inside, and spoils one bit of it.
class FaultPostedTransport::Flipped final : public PostedRequest {
 public:
  Flipped(FaultPostedTransport& owner, PostedRequest& outer, BitPlace place)
      : owner_(owner),
        outer_(outer),
        place_(place),
        items_(outer.items.begin(), outer.items.end()) {
    remote_regions = outer.remote_regions;
    direction = outer.direction;
    by_address = outer.by_address;
    total_bytes = outer.total_bytes;
    deadline = outer.deadline;
    CopyItem& item = items_[place_.item];
    if (direction == Direction::kWrite) {
      copy_.assign(item.local, item.local + item.bytes);
      item.local = copy_.data();
      place_.flip(item.local);
    }
    items = items_;
  }
  void on_done(Status status) override {
    const auto keep = owner_.take(*this);
    if (status.ok() && direction == Direction::kRead) place_.flip(items_[place_.item].local);
    outer_.on_done(std::move(status));
  }
  const PostedRequest& outer() const noexcept { return outer_; }

 private:
  FaultPostedTransport& owner_;
  PostedRequest& outer_;
  const BitPlace place_;
  std::vector<CopyItem> items_;
  std::vector<std::byte> copy_;
};

FaultPostedTransport::FaultPostedTransport(Poller& poller, std::shared_ptr<PostedTransport> inside,
                                           std::shared_ptr<FaultInjector> injector,
                                           std::function<void(const Status&)> cut)
    : poller_(poller),
      inside_(std::move(inside)),
      injector_(std::move(injector)),
      cut_(std::move(cut)) {}

FaultPostedTransport::~FaultPostedTransport() = default;

void FaultPostedTransport::post(PostedRequest& request) {
  const auto decision = injector_->next((request.total_bytes + kSliceBytes - 1) / kSliceBytes);
  switch (decision.fault) {
    case Fault::kNone: return inside_->post(request);
    case Fault::kFlip: return post_flipped(request, decision.random);
    case Fault::kDrop:
      return hold(
          {.request = &request,
           .due = request.deadline,
           .end_with = Status(Reason::kTimedOut, "injected fault: the request was dropped")});
    case Fault::kDelay: {
      const Deadline due = Deadline::in(FaultInjector::delay_of(decision));
      return hold({.request = &request, .due = Deadline::earlier(due, request.deadline)});
    }
    case Fault::kCut:
      return hold(
          {.request = &request,
           .due = Deadline::in(Duration::zero()),
           .cuts = true,
           .end_with = Status(Reason::kConnectionCut, "injected fault: the peer was cut off")});
  }
}

void FaultPostedTransport::hold(Held held) {
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      held_.push_back(std::move(held));
      poller_.wake();
      return;
    }
  }
  inside_->post(*held.request);  // Which is closed too, and says so.
}

void FaultPostedTransport::post_flipped(PostedRequest& request, uint64_t random) {
  const auto place = pick_bit(request.items, random);
  if (!place.has_value()) return inside_->post(request);
  auto flipped = std::make_unique<Flipped>(*this, request, *place);
  Flipped& inner = *flipped;
  {
    MutexLock lock(mutex_);
    flipped_.push_back(std::move(flipped));
  }
  inside_->post(inner);
}

void FaultPostedTransport::cancel(PostedRequest& request, Status why) {
  PostedRequest* inner = &request;
  {
    MutexLock lock(mutex_);
    for (Held& held : held_) {
      if (held.request != &request) continue;
      held.end_with = std::move(why);
      held.cuts = false;
      held.due = Deadline::in(Duration::zero());
      poller_.wake();
      return;
    }
    // While the lock is held, the stand-in cannot end and be destroyed.
    for (const auto& flipped : flipped_) {
      if (&flipped->outer() == &request) return inside_->cancel(*flipped, std::move(why));
    }
  }
  inside_->cancel(*inner, std::move(why));
}

Duration FaultPostedTransport::tick() {
  while (run_due()) {
  }
  Duration next = Deadline::kLongest;
  MutexLock lock(mutex_);
  for (const Held& held : held_) next = std::min(next, held.due.left());
  return next;
}

// One request that is due. False if there is none.
bool FaultPostedTransport::run_due() {
  std::optional<Held> due;
  {
    MutexLock lock(mutex_);
    const auto at = std::find_if(held_.begin(), held_.end(),
                                 [](const Held& held) { return held.due.passed(); });
    if (at == held_.end()) return false;
    due = *at;
    if (due->end_with.has_value()) {
      held_.erase(at);
    } else {
      at->passing = true;
      at->due = Deadline::in(Deadline::kLongest);
    }
  }
  if (!due->end_with.has_value()) {
    hand_on(*due->request);
    return true;
  }
  if (due->cuts) cut_(*due->end_with);
  due->request->on_done(*due->end_with);
  return true;
}

// A cancel that comes before the transport inside knows the request is kept in its entry.
void FaultPostedTransport::hand_on(PostedRequest& request) {
  inside_->post(request);
  std::optional<Status> cancelled;
  {
    MutexLock lock(mutex_);
    const auto at = std::find_if(held_.begin(), held_.end(), [&](const Held& held) {
      return held.passing && held.request == &request;
    });
    if (at == held_.end()) return;
    cancelled = std::move(at->end_with);
    held_.erase(at);
  }
  if (cancelled.has_value()) inside_->cancel(request, *cancelled);
}

void FaultPostedTransport::close(const Status& why) {
  std::vector<Held> ended;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    ended.swap(held_);
  }
  for (const Held& held : ended) {
    if (!held.passing) held.request->on_done(why);
  }
}

std::unique_ptr<FaultPostedTransport::Flipped> FaultPostedTransport::take(const Flipped& flipped) {
  MutexLock lock(mutex_);
  const auto at = std::find_if(flipped_.begin(), flipped_.end(),
                               [&](const auto& held) { return held.get() == &flipped; });
  auto taken = std::move(*at);
  flipped_.erase(at);
  return taken;
}

}  // namespace stagelink::transport
