#pragma once

#include <algorithm>
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

// By how long its answer may take.
enum class PushKind : uint8_t { kAtOnce, kComplete, kReserve };

struct PushLetter {
  std::string message;
  uint64_t id = 0;  // 0: its answer is not waited for.
  PushKind kind = PushKind::kAtOnce;
};

// A producer's connection to one consumer. No more than kWindow messages of a kind are unanswered
// at a time: ZeroMQ drops the answers that a peer does not take in time. The kinds do not wait for
// each other: a reservation waits for room and a completion for its read, and neither holds up the
// sign of life of what has been reserved.
//
// Thread-safety: none; the pusher's thread.
class PushLink {
 public:
  static constexpr size_t kWindow = 256;
  static constexpr size_t kKinds = 3;

  // `patience`: how long a message may find no way out before the consumer counts as lost.
  PushLink(zmq::Dealer socket, Duration patience)
      : socket_(std::move(socket)), patience_(patience) {}

  void queue(PushLetter letter) {
    outbox_[static_cast<size_t>(letter.kind)].push_back(std::move(letter));
  }
  // Sends what may go; the ids are added to `sent`. Errors: unreachable.
  Status send(std::vector<uint64_t>& sent);
  // The next answer, without waiting.
  std::optional<Result<PushReply>> receive();
  // Of each kind of message. Whoever knows that nobody waits for an answer takes its id out.
  std::array<std::set<uint64_t>, kKinds>& unanswered() noexcept { return unanswered_; }

  const zmq::Socket& socket() const noexcept { return socket_; }
  bool is_empty() const noexcept {
    return std::all_of(outbox_.begin(), outbox_.end(), [](const auto& box) { return box.empty(); });
  }
  bool may_send() const noexcept { return may_send(0) || may_send(1) || may_send(2); }
  // Waits for answers.
  bool is_held_up() const noexcept { return is_held_up(0) || is_held_up(1) || is_held_up(2); }
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
  // By kind.
  std::array<std::deque<PushLetter>, kKinds> outbox_;
  std::array<std::set<uint64_t>, kKinds> unanswered_;
  std::optional<Deadline> stuck_;
  Deadline::Clock::time_point heard_{};  // The last answer.
};

}  // namespace stagelink::encoder_cache
