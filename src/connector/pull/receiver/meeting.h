#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "base/unique_fd.h"
#include "connector/pull/receiver/sender_link.h"

namespace stagelink::pull {

// Meets a sender on a thread of its own, for whoever has more to do meanwhile. One that is not
// there is looked for again and again until `until`.
//
// Thread-safety: one thread at a time.
class Meeting {
 public:
  // `wake`, an eventfd, is written when the meeting is over.
  Meeting(std::shared_ptr<Home> home, std::shared_ptr<SenderLink> link, const Deadline& deadline,
          const Deadline& until, std::shared_ptr<const UniqueFd> wake);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  bool is_over() const noexcept { return over_.load(); }
  // Once it is over.
  Result<std::shared_ptr<SenderLife>> take() { return *std::move(life_); }

 private:
  void run();

  const std::shared_ptr<Home> home_;
  const std::shared_ptr<SenderLink> link_;
  const Deadline deadline_;
  const Deadline until_;
  const std::shared_ptr<const UniqueFd> wake_;
  std::atomic<bool> over_{false};
  std::atomic<bool> abandoned_{false};
  std::optional<Result<std::shared_ptr<SenderLife>>> life_;  // Of the thread until it is over.
  std::thread thread_;
};

}  // namespace stagelink::pull
