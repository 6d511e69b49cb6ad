#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "connector/encoder_cache/push/push_messages.h"
#include "connector/zmq/socket.h"

namespace stagelink::encoder_cache {

struct PushLetter {
  std::string message;
  uint64_t id = 0;  // 0: its answer is not waited for.
  bool is_reserve = false;
};

// A producer's connection to one consumer. No more than kWindow reservations, and as many other
// messages, are unanswered at a time: ZeroMQ drops the answers that a peer does not take in time.
// Reservations wait for room and are apart, so that what gives room is never behind them.
//
// Thread-safety: none; the pusher's thread.
class PushLink {
 public:
  static constexpr size_t kWindow = 256;

  // `patience`: how long a message may find no way out before the consumer counts as lost.
  PushLink(zmq::Dealer socket, Duration patience)
      : socket_(std::move(socket)), patience_(patience) {}

  void queue(PushLetter letter) { outbox_[letter.is_reserve ? 1 : 0].push_back(std::move(letter)); }
  // Sends what may go; the ids are added to `sent`. Errors: unreachable.
  Status send(std::vector<uint64_t>& sent);
  // The next answer, without waiting.
  std::optional<Result<PushReply>> receive();
  // Of both kinds of messages. Whoever knows that nobody waits for an answer takes its id out.
  std::array<std::set<uint64_t>, 2>& unanswered() noexcept { return unanswered_; }

  const zmq::Socket& socket() const noexcept { return socket_; }
  bool is_empty() const noexcept { return outbox_[0].empty() && outbox_[1].empty(); }
  bool may_send() const noexcept { return may_send(0) || may_send(1); }
  // Waits for answers.
  bool is_held_up() const noexcept { return is_held_up(0) || is_held_up(1); }
  // When what finds no way out has done so for too long.
  Deadline late() const { return stuck_.value_or(Deadline::in(Deadline::kLongest)); }

 private:
  bool may_send(size_t kind) const noexcept {
    return !outbox_[kind].empty() && unanswered_[kind].size() < kWindow;
  }
  bool is_held_up(size_t kind) const noexcept {
    return !outbox_[kind].empty() && unanswered_[kind].size() >= kWindow;
  }

  zmq::Dealer socket_;
  const Duration patience_;
  // Of all else, and behind it of reservations.
  std::array<std::deque<PushLetter>, 2> outbox_;
  std::array<std::set<uint64_t>, 2> unanswered_;
  std::optional<Deadline> stuck_;
  Deadline::Clock::time_point heard_{};  // The last answer.
};

}  // namespace stagelink::encoder_cache
