#include "broker/watch.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/endpoint.h"

namespace stagelink::broker {
namespace {

using namespace std::chrono_literals;
using store::yuanrong::Seen;

// A worker that answers its health check this late is one that does not answer. On a busy host a
// check may well take a second.
constexpr auto kHealthPatience = 3s;
constexpr auto kConnectPatience = 1s;
constexpr auto kCoordinatorInterval = 2s;
constexpr uint32_t kNoExclusiveLeft = 13;  // The library's code, among other things.
constexpr int kMissesOfMember = 2;         // One lost packet cuts nobody off.

int64_t now_ns() noexcept { return std::chrono::steady_clock::now().time_since_epoch().count(); }

template <size_t Size>
void copy_text(const std::string& text, std::array<char, Size>& out) noexcept {
  const size_t bytes = std::min(text.size(), Size - 1);
  std::memcpy(out.data(), text.data(), bytes);
  out[bytes] = 0;
}

}  // namespace

void Sessions::add(Pointer session) {
  const MutexLock lock(mutex_);
  sessions_[session->socket()] = std::move(session);
}

Sessions::Pointer Sessions::find(int socket) const {
  const MutexLock lock(mutex_);
  const auto at = sessions_.find(socket);
  return at == sessions_.end() ? nullptr : at->second;
}

void Sessions::remove(int socket) {
  Pointer last;  // Dropped without the lock.
  const MutexLock lock(mutex_);
  if (const auto at = sessions_.find(socket); at != sessions_.end()) {
    last = std::move(at->second);
    sessions_.erase(at);
  }
}

std::vector<Sessions::Pointer> Sessions::all() const {
  std::vector<Pointer> out;
  const MutexLock lock(mutex_);
  for (const auto& [socket, session] : sessions_) out.push_back(session);
  return out;
}

Watcher::Watcher(Sdk& sdk, SharedClients& clients, Sessions& sessions)
    : sdk_(sdk), clients_(clients), sessions_(sessions) {}

void Watcher::watch_for(Session& session) {
  const MutexLock lock(mutex_);
  if (!started_) {
    started_ = true;
    options_ = session.options();
    interval_ = std::chrono::milliseconds(std::max(options_.health_interval_ms, 10U));
    std::thread([this] { watch_worker(); }).detach();
    std::thread([this] { watch_health(); }).detach();
    if (!options_.etcd_address.empty()) std::thread([this] { ask_coordinator(); }).detach();
    if (!options_.etcd_address.empty() || !options_.ring.empty()) {
      std::thread([this] { watch_ring(); }).detach();
    }
  }
  write(session);
}

// The worker is up if somebody listens at its port and the last health check was well and did not
// take too long.
void Watcher::watch_worker() {
  Reach reach(Endpoint{options_.host, options_.port}.to_string());
  for (;;) {
    const Deadline next = Deadline::in(interval_);
    const Status reached = reach.check(Deadline::in(kConnectPatience));
    const int64_t since = health_since_.load();
    Sight now{Seen::kUp, {}};
    if (!reached.ok()) {
      now = {Seen::kDown, std::string(reached.message())};
    } else if (since != 0 && now_ns() - since > std::chrono::nanoseconds(kHealthPatience).count()) {
      now = {Seen::kDown, fmt::format("{}: does not answer", reach.address())};
    } else if (!health_well_) {
      const MutexLock lock(mutex_);
      now = {Seen::kDown, health_text_};
    }
    see(&Watcher::worker_, std::move(now));
    reach.wait_for_end(next);
  }
}

// Over an exclusive connection the check of a dead worker fails at once; over the shared one it
// takes the whole timeout of a request.
void Watcher::watch_health() {
  std::shared_ptr<SdkClient> client;
  for (;;) {
    health_since_ = now_ns();
    SdkStatus status;
    if (client == nullptr) {
      auto [made, why] = clients_.exclusive(options_);
      client = std::move(made);
      status = std::move(why);
    }
    if (client != nullptr) status = client->check_health();
    if (status.code == kNoExclusiveLeft || (client == nullptr && status.ok())) {
      SharedClients::Connected shared = clients_.shared(options_);
      client = std::move(shared.client);
      status = client == nullptr ? std::move(shared.status) : client->check_health();
    }
    {
      const MutexLock lock(mutex_);
      health_text_ = status.ok() ? "" : fmt::format("code {}: {}", status.code, status.message);
    }
    health_well_ = status.ok();
    health_since_ = 0;
    std::this_thread::sleep_for(interval_);
  }
}

// The library's answer can take a minute where etcd has gone: whether it is there is looked at
// apart.
void Watcher::ask_coordinator() {
  for (;;) {
    std::vector<std::string> workers;
    if (sdk_.workers(options_.etcd_address, workers).ok()) {
      const MutexLock lock(mutex_);
      for (const std::string& worker : workers) named_[worker] = Clock::now();
    }
    std::this_thread::sleep_for(kCoordinatorInterval);
  }
}

void Watcher::watch_ring() {
  Members members;
  Reach coordinator(options_.etcd_address);
  for (;;) {
    const auto next = Clock::now() + interval_;
    if (!options_.etcd_address.empty()) {
      const Status reached = coordinator.check(Deadline::in(kConnectPatience));
      see(&Watcher::coordinator_, {reached.ok() ? Seen::kUp : Seen::kDown, {}});
    }
    if (refresh(members)) see(&Watcher::ring_, look_at(members));
    std::this_thread::sleep_until(next);
  }
}

// Without etcd nobody says who has left: then all that were named stay. False: nobody has said yet
// who belongs to the ring.
bool Watcher::refresh(Members& members) {
  const std::string self = Endpoint{options_.host, options_.port}.to_string();
  Members wanted;
  const auto want = [&](const std::string& address) {
    if (address == self || wanted.contains(address)) return;
    if (const auto at = members.find(address); at != members.end()) {
      wanted[address] = std::move(at->second);
    } else {
      wanted[address] = {std::make_unique<Reach>(address), 0};
    }
  };
  const auto fixed = store::yuanrong::parse_ring(options_.ring);
  const bool is_fixed = fixed.ok() && !(*fixed).empty();
  if (is_fixed) {
    for (const std::string& address : *fixed) want(address);
  }
  const MutexLock lock(mutex_);
  const bool is_known = is_fixed || !named_.empty() || ring_.seen != Seen::kUnknown;
  const auto oldest = Clock::now() - std::chrono::milliseconds(options_.ring_timeout_ms);
  if (coordinator_.seen != Seen::kDown) {
    std::erase_if(named_, [&](const auto& entry) { return entry.second < oldest; });
  }
  for (const auto& [address, at] : named_) want(address);
  members = std::move(wanted);
  return is_known;
}

Watcher::Sight Watcher::look_at(Members& members) const {
  Sight sight{Seen::kUp, {}};
  const Deadline deadline = Deadline::in(kConnectPatience);
  for (auto& [address, member] : members) {
    const Status reached = member.reach->check(deadline);
    member.misses = reached.ok() ? 0 : member.misses + 1;
    if (member.misses < kMissesOfMember) continue;
    sight.seen = Seen::kDown;
    if (!sight.text.empty()) sight.text += ", ";
    sight.text += reached.message();
  }
  return sight;
}

// A session is added before it is written to: it misses nothing.
void Watcher::see(Sight Watcher::*what, Sight now) {
  const MutexLock lock(mutex_);
  if (this->*what == now) return;
  this->*what = std::move(now);
  for (const Sessions::Pointer& session : sessions_.all()) write(*session);
}

void Watcher::write(Session& session) {
  store::yuanrong::Watch& watch = session.watch();
  copy_text(worker_.text, watch.worker_text);
  copy_text(ring_.text, watch.ring_text);
  const auto set = [](Seen seen, std::atomic<uint32_t>& word, std::atomic<uint32_t>& losses) {
    const auto now = static_cast<uint32_t>(seen);
    if (word.exchange(now) != now && seen == Seen::kDown) losses.fetch_add(1);
  };
  set(worker_.seen, watch.worker, watch.worker_losses);
  set(ring_.seen, watch.ring, watch.ring_losses);
  set(coordinator_.seen, watch.coordinator, watch.coordinator_losses);
  watch.changes.fetch_add(1);
  session.wake_client();
}

}  // namespace stagelink::broker
