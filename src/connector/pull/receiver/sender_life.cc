#include "connector/pull/receiver/sender_life.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/host_id.h"
#include "connector/pull/messages/omni_messages.h"
#include "connector/zmq/port_shortage.h"

namespace stagelink::pull {
namespace {

constexpr size_t kMaxIdleLines = 64;
constexpr size_t kMaxUnsent = 4096;
constexpr size_t kMaxSessions = 64;
// For a line over ZeroMQ that was made to release claims.
constexpr Duration kFirstConnection = std::chrono::milliseconds(250);
constexpr Duration kJoinTime = std::chrono::seconds(5);

Status silent(const Endpoint& sender, const Status& why, const Home& home) {
  return Status(
      Reason::kUnreachable,
      fmt::format("the sender {} does not answer ({}): is it running, and is this its zmq_port{}?",
                  sender.to_string(), why.message(),
                  home.context->keys() != nullptr ? ", and does it hold the same secret" : ""));
}

// The answer to a hello. Nothing: it is a peer of 0.30.
Result<std::optional<WelcomeMessage>> read_welcome(MessageSpan answer, const Endpoint& sender) {
  if (is_omni_word(answer, kOmniAckError)) return std::optional<WelcomeMessage>();
  SL_ASSIGN(const MessageType type, message_type(answer));
  if (type == MessageType::kRefusal) {
    Denial refusal;
    SL_TRY(decode(answer, refusal));
    return Status(refusal.reason,
                  fmt::format("the sender {} refuses: {}", sender.to_string(), refusal.why));
  }
  if (type != MessageType::kWelcome) {
    return Status(Reason::kFrame, fmt::format("{} answers a hello with a message of type {}",
                                              sender.to_string(), static_cast<int>(type)));
  }
  WelcomeMessage welcome;
  SL_TRY(decode(answer, welcome));
  return std::optional(std::move(welcome));
}

}  // namespace

Result<std::shared_ptr<SenderLife>> SenderLife::meet(Home& home, const Endpoint& sender,
                                                     const Deadline& deadline) {
  SL_ASSIGN(std::shared_ptr<Line> line, ZmqLine::connect(home.context, sender));
  const Deadline answer_by = Deadline::earlier(deadline, Deadline::in(home.options.ask_timeout));
  Message hello;
  encode(HelloMessage{home.receiver}, hello);
  if (const Status sent = line->send(hello, answer_by); !sent.ok()) {
    if (sent.code() != Code::kTimedOut) return silent(sender, sent, home);
    SL_TRY(zmq::local_port_shortage(sender));
    return silent(sender, Status(Reason::kConnectTimeout, "no connection in time"), home);
  }
  std::optional<MessageSpan> answer;
  while (!answer.has_value()) {
    SL_TRY(home.usable());
    if (answer_by.passed()) {
      return silent(sender, Status(Reason::kTimedOut, "no answer in time"), home);
    }
    SL_ASSIGN(answer, line->receive(answer_by, home.stop.get()));
  }
  SL_ASSIGN(auto welcome, read_welcome(*answer, sender));
  if (!welcome.has_value() && !home.options.compat_030) {
    return Status(Reason::kVersion,
                  fmt::format("the sender {} speaks the messages of vLLM-Omni 0.30; set "
                              "`compat_030: true` to get from such a one",
                              sender.to_string()));
  }
  const bool is_omni = !welcome.has_value();
  auto life =
      std::make_shared<SenderLife>(home, sender, is_omni ? WelcomeMessage() : *std::move(welcome));
  life->is_omni_ = is_omni;
  if (!is_omni) SL_TRY(life->join(deadline));
  // Where there is a better way, the first contact was the last one over ZeroMQ.
  if (is_omni || life->use_zmq_.load()) life->give_back(std::move(line));
  return life;
}

SenderLife::SenderLife(Home& home, Endpoint sender, WelcomeMessage welcome) noexcept
    : home_(home), sender_(std::move(sender)), welcome_(std::move(welcome)) {}

Status SenderLife::join(const Deadline& deadline) {
  if ((home_.plane != nullptr) == welcome_.plane.empty()) {
    return Status(Reason::kIncompatible,
                  fmt::format("the sender {} and this receiver disagree on `protocol: ascend`",
                              sender_.to_string()));
  }
  use_zmq_.store(welcome_.socket_path.empty() || welcome_.host != host_id());
  // It has answered: its engine is given the time that engines have for each other.
  const Duration time =
      std::clamp<Duration>(deadline.left(), std::chrono::milliseconds(1), kJoinTime);
  SL_ASSIGN(Peer peer, home_.engine->connect(std::span<const std::byte>(welcome_.engine), time));
  peer_ = std::make_shared<Peer>(std::move(peer));
  SL_ASSIGN(base_session_,
            session({{home_.pool_region, home_.stamp_region}, {welcome_.pool, welcome_.stamps}},
                    /*keep=*/true));
  return {};
}

bool SenderLife::is_over() const noexcept {
  return over_.load() || (peer_ != nullptr && peer_->phase() == PeerPhase::kLost);
}

// --- Lines ---

Result<std::unique_ptr<Line>> SenderLife::connect_line() const {
  if (!is_omni_ && !use_zmq_.load()) {
    auto line = UnixLine::connect(welcome_.socket_path);
    const Reason reason = line.status().reason();
    if (line.ok() || reason == Reason::kRefused || reason == Reason::kNofile) return line;
    // Another mount namespace, say: ZeroMQ reaches it all the same.
    use_zmq_.store(true);
  }
  return ZmqLine::connect(home_.context, sender_);
}

std::shared_ptr<Line> SenderLife::take_idle() {
  MutexLock lock(mutex_);
  if (idle_.empty()) return nullptr;
  std::shared_ptr<Line> line = std::move(idle_.back());
  idle_.pop_back();
  return line;
}

Result<SenderLife::Lease> SenderLife::line() {
  if (auto idle = take_idle()) return Lease(*this, std::move(idle));
  SL_ASSIGN(std::shared_ptr<Line> line, connect_line());
  return Lease(*this, std::move(line));
}

void SenderLife::give_back(std::shared_ptr<Line> line) {
  // What was over its bound is closed without the lock.
  MutexLock lock(mutex_);
  if (idle_.size() < kMaxIdleLines) idle_.push_back(std::move(line));
}

void SenderLife::release(std::span<const ReleaseEntry> entries) {
  ReleaseMessage message{home_.receiver, welcome_.life, {}};
  {
    MutexLock lock(mutex_);
    message.entries = std::move(unsent_);
    unsent_.clear();
  }
  message.entries.insert(message.entries.end(), entries.begin(), entries.end());
  std::shared_ptr<Line> line = take_idle();
  Deadline now = Deadline::in(Duration::zero());
  if (line == nullptr) {
    // All are waiting for answers.
    auto fresh = connect_line();
    if (fresh.ok()) line = *std::move(fresh);
    if (line != nullptr && !line->is_local()) now = Deadline::in(kFirstConnection);
  }
  size_t sent = 0;
  thread_local Message t_release;
  while (line != nullptr && sent < message.entries.size()) {
    const size_t count = std::min(message.entries.size() - sent, kMaxReleaseEntries);
    const auto first = message.entries.begin() + static_cast<ptrdiff_t>(sent);
    if (count == message.entries.size()) {
      encode(message, t_release);
    } else {
      encode(
          ReleaseMessage{
              home_.receiver, welcome_.life, {first, first + static_cast<ptrdiff_t>(count)}},
          t_release);
    }
    if (const Status said = line->send(t_release, now); !said.ok()) {
      if (said.code() != Code::kTimedOut) line.reset();  // It has ended.
      break;
    }
    sent += count;
  }
  if (line != nullptr) give_back(line);
  if (sent == message.entries.size()) return;
  MutexLock lock(mutex_);
  const auto rest = message.entries.begin() + static_cast<ptrdiff_t>(sent);
  const auto room = static_cast<ptrdiff_t>(kMaxUnsent - std::min(kMaxUnsent, unsent_.size()));
  unsent_.insert(unsent_.end(), rest,
                 rest + std::min<ptrdiff_t>(room, message.entries.end() - rest));
}

// --- Sessions ---

Result<std::shared_ptr<Session>> SenderLife::session(const Regions& regions, bool keep) {
  SessionKey key;
  for (const auto& region : regions.first) {
    const RegionDesc desc = region->descriptor();
    key.insert(key.end(), {desc.index, desc.generation});
  }
  key.push_back(UINT64_MAX);
  for (const RegionDesc& desc : regions.second) {
    key.insert(key.end(), {desc.index, desc.generation});
  }
  {
    MutexLock lock(mutex_);
    if (const auto found = sessions_.find(key); found != sessions_.end()) return found->second;
  }
  std::vector<const Region*> locals;
  for (const auto& region : regions.first) locals.push_back(region.get());
  SL_ASSIGN(Session made, peer_->session(locals, regions.second));
  auto session = std::make_shared<Session>(std::move(made));
  if (!keep) return session;
  std::map<SessionKey, std::shared_ptr<Session>> old;  // Goes without the lock.
  MutexLock lock(mutex_);
  if (sessions_.size() >= kMaxSessions) old.swap(sessions_);
  sessions_.insert_or_assign(std::move(key), session);
  return session;
}

Result<std::shared_ptr<Session>> SenderLife::session_by_address(uint16_t rpc_port) {
  {
    MutexLock lock(mutex_);
    const auto found = by_port_.find(rpc_port);
    if (found != by_port_.end() && found->second.first->phase() != PeerPhase::kLost) {
      return found->second.second;
    }
  }
  SL_ASSIGN(Peer connected, home_.engine->connect(Endpoint{sender_.host, rpc_port}.to_string()));
  auto peer = std::make_shared<Peer>(std::move(connected));
  const Region* const pool = home_.pool_region.get();
  SL_ASSIGN(Session made, peer->session_by_address(std::span(&pool, 1)));
  auto session = std::make_shared<Session>(std::move(made));
  MutexLock lock(mutex_);
  if (by_port_.size() >= kMaxSessions) by_port_.clear();
  by_port_.insert_or_assign(rpc_port, std::pair(std::move(peer), session));
  return session;
}

}  // namespace stagelink::pull
