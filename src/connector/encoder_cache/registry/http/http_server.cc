#include "connector/encoder_cache/registry/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "connector/encoder_cache/registry/http/http_status.h"
#include "transport/poller.h"

namespace stagelink::encoder_cache {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than anybody waits: what ends it comes as an event.
constexpr auto kLongestSleep = std::chrono::hours(1);
// After an answer to what could not be read: the client is to see it, and what it still sends is
// thrown away, as closing with unread bytes would reset the connection under the answer.
constexpr auto kDrainTime = std::chrono::seconds(1);
constexpr size_t kDrainBytes = 1 << 20;
constexpr int kAcceptsPerRound = 64;
constexpr auto kMayAsk = std::chrono::milliseconds(100);  // Who has just come is not silent.
constexpr uint32_t kMaxBacklog = 65'535;

}  // namespace

class HttpServer::Core final {
 public:
  Core(UniqueFd listener, const HttpLimits& limits, std::string extra_header, HttpHandler& handler,
       std::unique_ptr<transport::Poller> poller)
      : limits_(limits),
        extra_header_(std::move(extra_header)),
        handler_(handler),
        listener_(std::move(listener)),
        poller_(std::move(poller)) {}

  Status open();
  void start();
  void respond(uint64_t id, HttpResponse response);
  void nudge() noexcept;
  HttpCounts counts() const noexcept;
  void close();

 private:
  enum class Phase : uint8_t { kReading, kParked, kWriting, kDraining };
  struct Connection final : transport::PollHandler {
    Connection(Core& core_in, UniqueFd fd_in, uint64_t id_in)
        : core(core_in),
          fd(std::move(fd_in)),
          id(id_in),
          reader(core_in.limits_.max_head_bytes, core_in.limits_.max_body_bytes) {}
    void on_ready(uint32_t events) override { core.on_ready(*this, events); }

    Core& core;
    const UniqueFd fd;
    const uint64_t id;
    RequestReader reader;
    Phase phase = Phase::kReading;
    Clock::time_point due;  // Not while it is parked.
    std::string out;
    size_t sent = 0;
    size_t drained = 0;
    bool close_after = false;
    HttpResponse at_deadline;
    Clock::time_point parked_until;
  };
  struct Acceptor final : transport::PollHandler {
    explicit Acceptor(Core& core_in) : core(core_in) {}
    void on_ready(uint32_t) override { core.accept_all(); }
    Core& core;
  };
  struct Nudge final : transport::PollTask {
    explicit Nudge(Core& core_in) : core(core_in) {}
    void run() override {
      posted.store(false);
      if (core.stopping_.load()) return;
      core.handler_.on_nudge();
      core.tick_soon();
      // A task may run when the time to sleep has been reckoned already.
      if (core.next_due() < core.sleeps_until_) core.poller_->wake();
    }
    Core& core;
    std::atomic<bool> posted{false};
  };
  using State = RequestReader::State;
  using Parked = std::pair<Clock::time_point, uint64_t>;

  void run();
  void tick(Clock::time_point now);
  void tick_soon() { tick_at_ = std::min(tick_at_, Clock::now() + limits_.tick); }
  Clock::time_point next_due() const { return std::min(tick_at_, late_at_); }
  void end_late(Clock::time_point now);
  void set_due(Connection& at, Duration left);
  void end_parked(Clock::time_point now);
  void accept_all();
  bool dismiss_silent();
  void turn_away(const UniqueFd& fd) noexcept;
  void on_ready(Connection& at, uint32_t events);
  void read(Connection& at);
  void drain(Connection& at);
  void go_on(Connection& at, State state);
  bool serve(Connection& at);
  bool ask_for_body(Connection& at);
  void refuse(Connection& at);
  void park(Connection& at, HttpParked parked);
  void put(Connection& at, const HttpResponse& response);
  bool flush(Connection& at);
  void answered(Connection& at);
  void watch(Connection& at, Phase phase, uint32_t events);
  void drop(Connection& at);

  const HttpLimits limits_;
  const std::string extra_header_;
  HttpHandler& handler_;
  UniqueFd listener_;
  const std::unique_ptr<transport::Poller> poller_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> accepted_{0};
  std::atomic<uint64_t> open_{0};
  std::atomic<uint64_t> turned_away_{0};
  std::atomic<uint64_t> malformed_{0};
  std::atomic<uint64_t> timed_out_{0};
  std::atomic<uint64_t> wakes_{0};

  // Of the thread.
  Acceptor acceptor_{*this};
  Nudge nudge_{*this};
  bool accepting_ = true;
  Clock::time_point tick_at_ = Clock::time_point::max();  // For the handler, and to accept again.
  Clock::time_point late_at_ = Clock::time_point::max();  // Nobody is late before.
  Clock::time_point sleeps_until_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> dropped_;  // Freed when nobody is inside them.
  std::set<Parked> parked_;
  std::set<uint64_t> silent_;  // Who has not asked for anything yet, in the order they came.
  std::thread thread_;
};

Status HttpServer::Core::open() {
  // So many may come at once; the kernel has a bound of its own (net.core.somaxconn).
  const auto backlog = static_cast<int>(std::min<uint32_t>(limits_.max_connections, kMaxBacklog));
  if (::listen(listener_.get(), backlog) != 0) {
    return Status(Reason::kSystem, fmt::format("listen: errno {}", errno));
  }
  return poller_->add(listener_.get(), EPOLLIN, &acceptor_);
}

void HttpServer::Core::start() {
  thread_ = std::thread([this] { run(); });
}

void HttpServer::Core::run() {
  ::pthread_setname_np(::pthread_self(), "sl-registry");
  while (!stopping_.load()) {
    const auto before = Clock::now();
    sleeps_until_ = std::min(next_due(), before + kLongestSleep);
    if (!parked_.empty()) sleeps_until_ = std::min(sleeps_until_, parked_.begin()->first);
    poller_->run_once(std::max<Duration>(sleeps_until_ - before, Duration::zero()));
    wakes_.fetch_add(1);
    const auto now = Clock::now();
    end_parked(now);
    if (now >= late_at_) end_late(now);
    if (now >= tick_at_) tick(now);
    dropped_.clear();
  }
}

void HttpServer::Core::tick(Clock::time_point now) {
  tick_at_ = Clock::time_point::max();
  if (!accepting_) accepting_ = poller_->modify(listener_.get(), EPOLLIN, &acceptor_).ok();
  if (handler_.on_tick() || !accepting_) tick_at_ = now + limits_.tick;
}

// All at once, and not again for a tick: those that are parked are never late, and cost nothing.
void HttpServer::Core::end_late(Clock::time_point now) {
  std::vector<Connection*> late;
  late_at_ = Clock::time_point::max();
  for (const auto& [id, connection] : connections_) {
    if (connection->phase == Phase::kParked) continue;
    if (connection->due <= now) {
      late.push_back(connection.get());
    } else {
      late_at_ = std::min(late_at_, std::max(connection->due, now + limits_.tick));
    }
  }
  for (Connection* const at : late) {
    // A kept connection that asks nothing is not slow.
    if (at->phase == Phase::kWriting || (at->phase == Phase::kReading && !at->reader.idle())) {
      timed_out_.fetch_add(1);
    }
    drop(*at);
  }
}

void HttpServer::Core::set_due(Connection& at, Duration left) {
  at.due = Clock::now() + left;
  late_at_ = std::min(late_at_, at.due);
}

void HttpServer::Core::end_parked(Clock::time_point now) {
  while (!parked_.empty() && parked_.begin()->first <= now) {
    Connection& at = *connections_.at(parked_.begin()->second);
    handler_.on_unparked(at.id);
    respond(at.id, std::move(at.at_deadline));
  }
}

void HttpServer::Core::accept_all() {
  for (int i = 0; i < kAcceptsPerRound; ++i) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EMFILE && dismiss_silent()) return;  // Its descriptor is free in the next round.
      if (errno != EAGAIN) {
        // Out of descriptors or memory: look again with the next tick, and never spin.
        log_failure("registry accept", Status(Reason::kNofile, fmt::format("accept: errno {}: "
                                                                           "raise ulimit -n",
                                                                           errno)));
        accepting_ = !poller_->modify(listener_.get(), 0, &acceptor_).ok();
        tick_soon();
      }
      return;
    }
    if (connections_.size() >= limits_.max_connections && !dismiss_silent()) {
      turn_away(fd);
      continue;
    }
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const uint64_t id = next_id_++;
    auto connection = std::make_unique<Connection>(*this, std::move(fd), id);
    set_due(*connection, limits_.request_timeout);
    if (!poller_->add(connection->fd.get(), EPOLLIN, connection.get()).ok()) continue;
    connections_.emplace(id, std::move(connection));
    silent_.insert(id);
    accepted_.fetch_add(1);
    open_.store(connections_.size());
  }
}

// Room for a newcomer: who has asked nothing for longest leaves, so that silent clients keep nobody
// out. False: all have asked, or may do so at any moment.
bool HttpServer::Core::dismiss_silent() {
  if (silent_.empty()) return false;
  Connection& oldest = *connections_.at(*silent_.begin());
  if (oldest.due > Clock::now() + limits_.request_timeout - kMayAsk) return false;
  timed_out_.fetch_add(1);
  drop(oldest);
  return true;
}

void HttpServer::Core::turn_away(const UniqueFd& fd) noexcept {
  turned_away_.fetch_add(1);
  static constexpr std::string_view kFull =
      "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
      "Content-Length: 0\r\n\r\n";
  (void)::send(fd.get(), kFull.data(), kFull.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void HttpServer::Core::on_ready(Connection& at, uint32_t events) {
  switch (at.phase) {
    case Phase::kReading: read(at); return;
    case Phase::kDraining: drain(at); return;
    case Phase::kWriting:
      if (flush(at)) answered(at);
      return;
    case Phase::kParked:
      if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) drop(at);
      return;
  }
}

void HttpServer::Core::read(Connection& at) {
  const std::span<char> room = at.reader.prepare();
  const ssize_t got = ::recv(at.fd.get(), room.data(), room.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    drop(at);
    return;
  }
  go_on(at, at.reader.commit(static_cast<size_t>(got)));
}

void HttpServer::Core::drain(Connection& at) {
  char scrap[4096];
  const ssize_t got = ::recv(at.fd.get(), scrap, sizeof scrap, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  at.drained += got > 0 ? static_cast<size_t>(got) : 0;
  if (got <= 0 || at.drained > kDrainBytes) drop(at);
}

// Serves the requests that have come, one behind the other.
void HttpServer::Core::go_on(Connection& at, State state) {
  while (state == State::kReady) {
    if (!serve(at)) return;
    state = at.reader.next();
  }
  if (state == State::kRefused) {
    refuse(at);
  } else if (at.reader.take_expectation() && !ask_for_body(at)) {
    return;
  } else if (at.phase != Phase::kReading) {
    watch(at, Phase::kReading, EPOLLIN);
  }
}

// True if the answer has left and the connection goes on.
bool HttpServer::Core::serve(Connection& at) {
  const HttpRequest request = at.reader.request();
  silent_.erase(at.id);
  // An answer to HEAD has no body, and is followed by nothing.
  at.close_after = !at.reader.keep_alive() || request.method == "HEAD";
  HttpAnswer answer = handler_.on_request(request, at.id);
  tick_soon();
  if (auto* const parked = std::get_if<HttpParked>(&answer)) {
    park(at, std::move(*parked));
    return false;
  }
  HttpResponse& response = std::get<HttpResponse>(answer);
  if (request.method == "HEAD") response.body.clear();
  put(at, response);
  if (!flush(at)) return false;
  if (!at.close_after) {
    set_due(at, limits_.idle_timeout);
    return true;
  }
  answered(at);
  return false;
}

// False: the connection is gone. All answers before it have left, so that there is room for it.
bool HttpServer::Core::ask_for_body(Connection& at) {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  const ssize_t sent =
      ::send(at.fd.get(), kContinue.data(), kContinue.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(kContinue.size())) return true;
  drop(at);
  return false;
}

void HttpServer::Core::refuse(Connection& at) {
  silent_.erase(at.id);  // Its time is another's.
  malformed_.fetch_add(1);
  const int status = at.reader.refusal();
  log(LogLevel::kInfo, "registry", fmt::format("a request was refused with {}", status));
  at.close_after = true;
  put(at, {.status = status, .body = std::string(refusal_text(status))});
  if (flush(at)) answered(at);
}

void HttpServer::Core::park(Connection& at, HttpParked parked) {
  at.parked_until = Clock::now() + parked.deadline.left();
  at.at_deadline = std::move(parked.at_deadline);
  parked_.emplace(at.parked_until, at.id);
  watch(at, Phase::kParked, EPOLLRDHUP);
}

void HttpServer::Core::respond(uint64_t id, HttpResponse response) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second->phase != Phase::kParked) return;
  Connection& at = *found->second;
  parked_.erase({at.parked_until, id});
  at.at_deadline = {};
  at.phase = Phase::kWriting;
  put(at, response);
  if (flush(at)) answered(at);
}

void HttpServer::Core::put(Connection& at, const HttpResponse& response) {
  const std::string_view connection = at.close_after         ? "Connection: close\r\n"
                                      : at.reader.http_1_0() ? "Connection: keep-alive\r\n"
                                                             : "";
  at.out.clear();
  at.sent = 0;
  fmt::format_to(std::back_inserter(at.out),
                 "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}{}\r\n",
                 response.status, status_phrase(response.status), response.content_type,
                 response.body.size(), extra_header_, connection);
  at.out += response.body;
  set_due(at, limits_.request_timeout);  // For the whole answer.
}

// True if all has left. Else it goes on when the client takes more, or the connection is gone.
bool HttpServer::Core::flush(Connection& at) {
  while (at.sent < at.out.size()) {
    const ssize_t sent = ::send(at.fd.get(), at.out.data() + at.sent, at.out.size() - at.sent,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      watch(at, Phase::kWriting, EPOLLOUT);
      return false;
    }
    if (sent <= 0) {
      drop(at);
      return false;
    }
    at.sent += static_cast<size_t>(sent);
  }
  return true;
}

// The answer has left in a phase of its own: after waiting, or slowly, or as the last one.
void HttpServer::Core::answered(Connection& at) {
  if (at.out.capacity() > (64 << 10)) at.out = {};
  if (at.close_after) {
    ::shutdown(at.fd.get(), SHUT_WR);
    set_due(at, kDrainTime);
    watch(at, Phase::kDraining, EPOLLIN);
    return;
  }
  set_due(at, limits_.idle_timeout);
  go_on(at, at.reader.next());
}

void HttpServer::Core::watch(Connection& at, Phase phase, uint32_t events) {
  at.phase = phase;
  if (!poller_->modify(at.fd.get(), events, &at).ok()) drop(at);
}

void HttpServer::Core::drop(Connection& at) {
  const auto found = connections_.find(at.id);
  if (found == connections_.end()) return;  // In dropped_ already.
  if (at.phase == Phase::kParked) {
    parked_.erase({at.parked_until, at.id});
    handler_.on_unparked(at.id);
  }
  poller_->remove(at.fd.get(), &at);
  silent_.erase(at.id);
  dropped_.push_back(std::move(found->second));
  connections_.erase(found);
  open_.store(connections_.size());
}

void HttpServer::Core::nudge() noexcept {
  if (!nudge_.posted.exchange(true)) poller_->post(nudge_);
}

HttpCounts HttpServer::Core::counts() const noexcept {
  return {accepted_, open_, turned_away_, malformed_, timed_out_, wakes_};
}

void HttpServer::Core::close() {
  stopping_.store(true);
  poller_->wake();
  if (thread_.joinable()) thread_.join();
  connections_.clear();
  dropped_.clear();
  listener_.reset();
  open_.store(0);
}

HttpServer::HttpServer(std::unique_ptr<Core> core) noexcept : core_(std::move(core)) {}

HttpServer::~HttpServer() { core_->close(); }

Result<std::unique_ptr<HttpServer>> HttpServer::create(UniqueFd listener, const HttpLimits& limits,
                                                       std::string extra_header,
                                                       HttpHandler& handler) {
  SL_ASSIGN(auto poller, transport::Poller::create());
  auto core = std::make_unique<Core>(std::move(listener), limits, std::move(extra_header), handler,
                                     std::move(poller));
  SL_TRY(core->open());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

void HttpServer::start() { core_->start(); }

void HttpServer::respond(uint64_t connection, HttpResponse response) {
  core_->respond(connection, std::move(response));
}

void HttpServer::nudge() noexcept { core_->nudge(); }

HttpCounts HttpServer::counts() const noexcept { return core_->counts(); }

void HttpServer::close() { core_->close(); }

}  // namespace stagelink::encoder_cache
