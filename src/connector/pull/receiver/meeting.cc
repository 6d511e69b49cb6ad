#include "connector/pull/receiver/meeting.h"

#include <algorithm>

#include <sys/eventfd.h>

namespace stagelink::pull {
namespace {

constexpr Duration kMeetingPause = std::chrono::milliseconds(50);

}  // namespace

Meeting::Meeting(std::shared_ptr<Home> home, std::shared_ptr<SenderLink> link,
                 const Deadline& deadline, const Deadline& until,
                 std::shared_ptr<const UniqueFd> wake)
    : home_(std::move(home)),
      link_(std::move(link)),
      deadline_(deadline),
      until_(until),
      wake_(std::move(wake)),
      thread_([this] { run(); }) {}

Meeting::~Meeting() {
  abandoned_.store(true);
  thread_.join();
}

void Meeting::run() {
  while (true) {
    life_.emplace(link_->life(deadline_));
    const bool may_come = life_->status().code() == Code::kUnreachable && !until_.passed() &&
                          !abandoned_.load() && home_->usable().ok();
    if (!may_come) break;
    std::this_thread::sleep_for(std::min<Duration>(kMeetingPause, until_.left()));
  }
  over_.store(true);
  ::eventfd_write(wake_->get(), 1);
}

}  // namespace stagelink::pull
