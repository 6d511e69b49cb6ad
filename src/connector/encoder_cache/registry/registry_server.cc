#include "connector/encoder_cache/registry/registry_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/mutex.h"
#include "base/random.h"
#include "connector/encoder_cache/registry/http/http_server.h"
#include "connector/encoder_cache/registry/http/request_target.h"
#include "connector/encoder_cache/registry/messages.h"
#include "connector/encoder_cache/registry/signature.h"
#include "engine/link/listen_socket.h"

namespace stagelink::encoder_cache {
namespace {

constexpr std::string_view kInfoPath = "/ec/info/";
constexpr std::string_view kPlainText = "text/plain; version=0.0.4; charset=utf-8";
// Of the table, each tick: what has ended is not shown anyway.
constexpr size_t kSweptBuckets = 8192;
// Of waiting clients, before others have their turn.
constexpr size_t kWokenAtOnce = 64;
// That are waited for, of all clients together.
constexpr size_t kMaxWaitedHashes = 262'144;

enum class Route : uint8_t {
  kInfo,
  kQuery,
  kPublish,
  kUnpublish,
  kRenew,
  kMetrics,
  kHealth,
  kNone
};
constexpr size_t kRoutes = 8;
constexpr std::array<std::string_view, kRoutes> kRouteNames = {
    "info", "query", "publish", "unpublish", "renew", "metrics", "healthz", "other"};
constexpr std::array<int, 8> kStatuses = {200, 400, 401, 404, 405, 503, 507, 500};

struct PathRoute {
  std::string_view path;
  std::string_view method;
  Route route;
};
constexpr std::array<PathRoute, 6> kPaths = {{{"/ec/query", "POST", Route::kQuery},
                                              {"/ec/publish", "POST", Route::kPublish},
                                              {"/ec/unpublish", "POST", Route::kUnpublish},
                                              {"/ec/renew", "POST", Route::kRenew},
                                              {"/metrics", "GET", Route::kMetrics},
                                              {"/healthz", "GET", Route::kHealth}}};

HttpResponse failure(int status, std::string_view detail) {
  return {.status = status, .body = encode_detail(detail)};
}

HttpResponse failure(const Status& status) {
  switch (status.code()) {
    case Code::kPermission: return failure(401, status.message());
    case Code::kNotFound:
    case Code::kSuperseded: return failure(404, status.message());
    case Code::kLimit: return failure(507, status.message());
    case Code::kBusy: return failure(503, status.message());
    default: return failure(400, status.message());
  }
}

HttpResponse unknown_hash() { return {.status = 404, .body = "{\"detail\":\"unknown mm_hash\"}"}; }

bool any_known(const Producers& producers) {
  return std::any_of(producers.begin(), producers.end(),
                     [](const auto& each) { return !each.empty(); });
}

}  // namespace

class RegistryServer::Core final : public HttpHandler {
 public:
  Core(const RegistryOptions& options, std::shared_ptr<const SigningKey> key)
      : options_(options), instance_(random_instance_id()), table_(options.table) {
    if (key != nullptr) check_.emplace(std::move(key), instance_);
  }

  Status start();

  HttpAnswer on_request(const HttpRequest& request, uint64_t connection) override;
  void on_unparked(uint64_t connection) override { forget(connection); }
  void on_nudge() override;
  bool on_tick() override;

  Result<PublishOutcome> publish(const PublishTerms& terms, std::span<const PublishedItem> items);
  std::string metrics_text() const;

  const RegistryOptions options_;
  const InstanceId instance_;
  RegistryTable table_;
  Endpoint endpoint_;
  std::atomic<uint64_t> waiting_{0};
  std::unique_ptr<HttpServer> http_;

 private:
  struct Waiter {
    std::vector<std::string> mm_hashes;
    bool single = true;
  };

  HttpAnswer serve(Route route, const RequestTarget& target, const HttpRequest& request,
                   uint64_t connection);
  HttpAnswer info(std::string mm_hash, Duration wait, uint64_t connection);
  HttpAnswer query(const HttpRequest& request, uint64_t connection);
  HttpAnswer park(Waiter waiter, Duration wait, HttpResponse at_deadline, uint64_t connection);
  HttpResponse publish_body(std::string_view body);
  HttpResponse unpublish_body(std::string_view body);
  HttpResponse renew_body(std::string_view body);
  HttpResponse health() const;
  Producers producers_of(std::span<const std::string> mm_hashes) const;
  bool answer_waiter(uint64_t connection, const Waiter& waiter);
  void forget(uint64_t connection);
  void wake(std::span<const PublishedItem> items);
  void count(Route route, const HttpAnswer& answer) noexcept;

  std::array<std::array<std::atomic<uint64_t>, kStatuses.size()>, kRoutes> requests_{};
  std::atomic<uint64_t> entries_refused_{0};
  std::atomic<bool> sweeping_{false};  // There will be a tick.

  Mutex mutex_;
  std::vector<std::string> published_ SL_GUARDED_BY(mutex_);  // Since the last nudge.

  // Of the server's thread.
  std::optional<SignatureCheck> check_;
  std::unordered_map<uint64_t, Waiter> waiters_;
  std::unordered_map<std::string, std::unordered_set<uint64_t>> by_hash_;
  size_t waited_hashes_ = 0;
  std::deque<uint64_t> to_wake_;
};

Status RegistryServer::Core::start() {
  const Endpoint wanted{options_.host, static_cast<uint16_t>(options_.port)};
  auto listener = engine::listen_tcp_socket(wanted, endpoint_);
  if (!listener.ok()) {
    const Status& why = listener.status();
    const bool is_address = why.reason() == Reason::kInvalidArgument;
    return Status(why.reason(),
                  fmt::format("{}: {}", is_address ? options_.names.host : options_.names.port,
                              why.message()));
  }
  const HttpLimits limits{.max_connections = options_.max_connections,
                          .max_body_bytes = options_.max_body_bytes,
                          .request_timeout = options_.request_timeout,
                          .idle_timeout = options_.idle_timeout,
                          .tick = options_.tick};
  SL_ASSIGN(http_, HttpServer::create(
                       *std::move(listener), limits,
                       fmt::format("Stagelink-Registry: {}\r\n", instance_.to_string()), *this));
  http_->start();
  return {};
}

HttpAnswer RegistryServer::Core::on_request(const HttpRequest& request, uint64_t connection) {
  Route route = Route::kNone;
  HttpAnswer answer = failure(404, "Not Found");
  auto target = parse_target(request.target);
  if (!target.ok()) {
    answer = failure(target.status());
  } else {
    std::string_view method = "GET";
    if (target->path.starts_with(kInfoPath)) route = Route::kInfo;
    for (const PathRoute& each : kPaths) {
      if (target->path != each.path) continue;
      route = each.route;
      method = each.method;
    }
    if (route != Route::kNone) {
      answer = request.method == method ? serve(route, *target, request, connection)
                                        : failure(405, "Method Not Allowed");
    }
  }
  count(route, answer);
  return answer;
}

HttpAnswer RegistryServer::Core::serve(Route route, const RequestTarget& target,
                                       const HttpRequest& request, uint64_t connection) {
  if (route == Route::kHealth) return health();
  if (route == Route::kMetrics) {
    return HttpResponse{.body = metrics_text(), .content_type = kPlainText};
  }
  if (check_.has_value()) {
    const bool once = route != Route::kInfo && route != Route::kQuery;
    const Status status = check_->check(
        request.signature, {request.method, request.target, request.body}, once, unix_ms_now());
    if (!status.ok()) {
      log(LogLevel::kWarning, "registry request refused", status.message());
      return failure(status);
    }
  }
  switch (route) {
    case Route::kInfo:
      return info(target.path.substr(kInfoPath.size()), target.wait.value_or(Duration::zero()),
                  connection);
    case Route::kQuery: return query(request, connection);
    case Route::kPublish: return publish_body(request.body);
    case Route::kUnpublish: return unpublish_body(request.body);
    default: return renew_body(request.body);
  }
}

HttpAnswer RegistryServer::Core::info(std::string mm_hash, Duration wait, uint64_t connection) {
  if (wait == Duration::zero()) {
    const auto found = table_.lookup(mm_hash);
    return found.has_value() ? HttpResponse{.body = encode_info(*found)} : unknown_hash();
  }
  if (!check_mm_hash(mm_hash).ok()) return unknown_hash();  // It will never be published.
  return park({.mm_hashes = {std::move(mm_hash)}, .single = true}, wait, unknown_hash(),
              connection);
}

HttpAnswer RegistryServer::Core::query(const HttpRequest& request, uint64_t connection) {
  auto query = decode_query(request.body);
  if (!query.ok()) return failure(query.status());
  if (query->wait == Duration::zero()) {
    return HttpResponse{.body = encode_producers(producers_of(query->mm_hashes))};
  }
  const HttpResponse none{.body = encode_producers(Producers(query->mm_hashes.size()))};
  return park({.mm_hashes = std::move(query->mm_hashes), .single = false}, query->wait, none,
              connection);
}

Producers RegistryServer::Core::producers_of(std::span<const std::string> mm_hashes) const {
  Producers producers;
  producers.reserve(mm_hashes.size());
  for (const std::string& mm_hash : mm_hashes) producers.push_back(table_.lookup_all(mm_hash));
  return producers;
}

// Counts as waiting before it looks: who publishes behind the look sees that somebody waits.
HttpAnswer RegistryServer::Core::park(Waiter waiter, Duration wait, HttpResponse at_deadline,
                                      uint64_t connection) {
  if (wait > options_.max_wait) {
    return failure(400, fmt::format("wait is {} s; this registry lets a request wait {} s at most",
                                    to_seconds(wait), to_seconds(options_.max_wait)));
  }
  if (waited_hashes_ + waiter.mm_hashes.size() > kMaxWaitedHashes) {
    return failure(503, fmt::format("{} hashes are waited for already", waited_hashes_));
  }
  waiting_.fetch_add(1);
  if (waiter.single) {
    if (const auto found = table_.lookup(waiter.mm_hashes.front()); found.has_value()) {
      waiting_.fetch_sub(1);
      return HttpResponse{.body = encode_info(*found)};
    }
  } else if (const Producers found = producers_of(waiter.mm_hashes); any_known(found)) {
    waiting_.fetch_sub(1);
    return HttpResponse{.body = encode_producers(found)};
  }
  for (const std::string& mm_hash : waiter.mm_hashes) by_hash_[mm_hash].insert(connection);
  waited_hashes_ += waiter.mm_hashes.size();
  waiters_.emplace(connection, std::move(waiter));
  return HttpParked{.deadline = Deadline::in(wait), .at_deadline = std::move(at_deadline)};
}

void RegistryServer::Core::forget(uint64_t connection) {
  const auto at = waiters_.find(connection);
  if (at == waiters_.end()) return;
  for (const std::string& mm_hash : at->second.mm_hashes) {
    const auto waiting = by_hash_.find(mm_hash);
    if (waiting == by_hash_.end()) continue;
    waiting->second.erase(connection);
    if (waiting->second.empty()) by_hash_.erase(waiting);
  }
  waited_hashes_ -= at->second.mm_hashes.size();
  waiters_.erase(at);
  waiting_.fetch_sub(1);
}

// False: what was published is gone again.
bool RegistryServer::Core::answer_waiter(uint64_t connection, const Waiter& waiter) {
  HttpResponse response;
  if (waiter.single) {
    const auto found = table_.lookup(waiter.mm_hashes.front());
    if (!found.has_value()) return false;
    response.body = encode_info(*found);
  } else {
    const Producers found = producers_of(waiter.mm_hashes);
    if (!any_known(found)) return false;
    response.body = encode_producers(found);
  }
  forget(connection);  // Ends the waiter that was given.
  http_->respond(connection, std::move(response));
  return true;
}

void RegistryServer::Core::on_nudge() {
  std::vector<std::string> published;
  {
    MutexLock lock(mutex_);
    published.swap(published_);
  }
  for (const std::string& mm_hash : published) {
    const auto at = by_hash_.find(mm_hash);
    if (at != by_hash_.end()) to_wake_.insert(to_wake_.end(), at->second.begin(), at->second.end());
  }
  for (size_t i = 0; i < kWokenAtOnce && !to_wake_.empty(); ++i) {
    const uint64_t connection = to_wake_.front();
    to_wake_.pop_front();
    const auto waiter = waiters_.find(connection);
    if (waiter != waiters_.end()) answer_waiter(connection, waiter->second);
  }
  if (!to_wake_.empty()) http_->nudge();
}

// An empty table needs no sweeping. Who publishes behind the look at it sees that nobody sweeps.
bool RegistryServer::Core::on_tick() {
  sweeping_.store(false);
  table_.sweep(kSweptBuckets);
  const TableUsage usage = table_.usage();
  if (usage.entries + usage.leases == 0) return false;
  sweeping_.store(true);
  return true;
}

void RegistryServer::Core::wake(std::span<const PublishedItem> items) {
  if (waiting_.load() == 0) return;
  {
    MutexLock lock(mutex_);
    for (const PublishedItem& item : items) published_.push_back(item.mm_hash);
  }
  http_->nudge();
}

Result<PublishOutcome> RegistryServer::Core::publish(const PublishTerms& terms,
                                                     std::span<const PublishedItem> items) {
  SL_ASSIGN(PublishOutcome outcome, table_.publish(terms, items));
  const auto refused = std::count_if(outcome.items.begin(), outcome.items.end(),
                                     [](const Status& status) { return !status.ok(); });
  entries_refused_.fetch_add(static_cast<uint64_t>(refused));
  wake(items);
  if (!sweeping_.exchange(true)) http_->nudge();
  return outcome;
}

HttpResponse RegistryServer::Core::publish_body(std::string_view body) {
  auto request = decode_publish(body);
  if (!request.ok()) return failure(request.status());
  auto outcome = publish(request->terms, request->items);
  if (!outcome.ok()) return failure(outcome.status());
  return {.body = encode(*outcome)};
}

HttpResponse RegistryServer::Core::unpublish_body(std::string_view body) {
  auto request = decode_unpublish(body);
  if (!request.ok()) return failure(request.status());
  return {.body =
              encode_count(request->all ? table_.unpublish_all(request->lease)
                                        : table_.unpublish(request->lease, request->mm_hashes))};
}

HttpResponse RegistryServer::Core::renew_body(std::string_view body) {
  auto request = decode_renew(body);
  if (!request.ok()) return failure(request.status());
  auto entries = table_.renew(request->lease, request->ttl);
  if (!entries.ok()) return failure(entries.status());
  return {.body = encode_count(*entries)};
}

HttpResponse RegistryServer::Core::health() const {
  const TableUsage usage = table_.usage();
  return {.body = fmt::format(
              "{{\"status\":\"ok\",\"instance\":\"{}\",\"entries\":{},\"hashes\":{},"
              "\"leases\":{},\"waiting\":{}}}",
              instance_.to_string(), usage.entries, usage.hashes, usage.leases, waiting_.load())};
}

void RegistryServer::Core::count(Route route, const HttpAnswer& answer) noexcept {
  // One that waits counts as answered: it will be, with 200 or 404.
  const auto* const response = std::get_if<HttpResponse>(&answer);
  const int status = response == nullptr ? 200 : response->status;
  const auto at = std::find(kStatuses.begin(), kStatuses.end() - 1, status);
  requests_[static_cast<size_t>(route)][static_cast<size_t>(at - kStatuses.begin())].fetch_add(1);
}

std::string RegistryServer::Core::metrics_text() const {
  std::string out;
  const auto put = [&out](std::string_view name, std::string_view kind, std::string_view help,
                          uint64_t value) {
    fmt::format_to(std::back_inserter(out),
                   "# HELP stagelink_registry_{0} {2}\n# TYPE stagelink_registry_{0} {1}\n"
                   "stagelink_registry_{0} {3}\n",
                   name, kind, help, value);
  };
  const TableUsage usage = table_.usage();
  put("entries", "gauge", "Entries, of all producers together", usage.entries);
  put("hashes", "gauge", "Hashes that have an entry", usage.hashes);
  put("table_bytes", "gauge", "Memory of the table", usage.bytes);
  put("leases", "gauge", "Producers that hold a lease", usage.leases);
  put("waiting", "gauge", "Requests that wait for a hash", waiting_.load());
  put("entries_refused_total", "counter", "Entries that were published and not taken",
      entries_refused_.load());
  const HttpCounts http = http_->counts();
  put("connections", "gauge", "Open connections", http.connections);
  put("connections_total", "counter", "Connections that were accepted", http.accepted);
  put("connections_refused_total", "counter", "Connections beyond max_connections",
      http.turned_away);
  put("malformed_total", "counter", "Requests that could not be read", http.malformed);
  put("slow_total", "counter", "Connections ended as too slow", http.timed_out);
  put("wakes_total", "counter", "Times that its thread has woken", http.wakes);
  out +=
      "# HELP stagelink_registry_requests_total Requests that were answered\n"
      "# TYPE stagelink_registry_requests_total counter\n";
  for (size_t route = 0; route < kRoutes; ++route) {
    for (size_t i = 0; i < kStatuses.size(); ++i) {
      const uint64_t value = requests_[route][i].load();
      if (value == 0) continue;
      fmt::format_to(std::back_inserter(out),
                     "stagelink_registry_requests_total{{request=\"{}\",status=\"{}\"}} {}\n",
                     kRouteNames[route], kStatuses[i], value);
    }
  }
  return out;
}

RegistryServer::RegistryServer(std::unique_ptr<Core> core) noexcept : core_(std::move(core)) {}

RegistryServer::~RegistryServer() { close(); }

Result<std::unique_ptr<RegistryServer>> RegistryServer::start(const RegistryOptions& options) {
  if (options.port > 65'535) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("{} is {}; 0 to 65535 can be", options.names.port, options.port));
  }
  if (options.table.max_bytes < RegistryOptions::kMinTableBytes) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("{} is {}; a table needs {} at least, and an entry about 250",
                              options.names.max_bytes, options.table.max_bytes,
                              RegistryOptions::kMinTableBytes));
  }
  std::shared_ptr<const SigningKey> key;
  if (!options.secret_file.empty()) {
    SL_ASSIGN(key, SigningKey::from_file(options.secret_file, options.names.secret_file));
  }
  auto core = std::make_unique<Core>(options, std::move(key));
  SL_TRY(core->start());
  return std::unique_ptr<RegistryServer>(new RegistryServer(std::move(core)));
}

const Endpoint& RegistryServer::endpoint() const noexcept { return core_->endpoint_; }

const InstanceId& RegistryServer::instance() const noexcept { return core_->instance_; }

Result<PublishOutcome> RegistryServer::publish(const PublishTerms& terms,
                                               std::span<const PublishedItem> items) {
  return core_->publish(terms, items);
}

uint64_t RegistryServer::unpublish(const LeaseId& lease, std::span<const std::string> mm_hashes) {
  return core_->table_.unpublish(lease, mm_hashes);
}

RegistryTable& RegistryServer::table() noexcept { return core_->table_; }

uint64_t RegistryServer::waiting() const noexcept { return core_->waiting_.load(); }

std::string RegistryServer::metrics_text() const { return core_->metrics_text(); }

void RegistryServer::close() { core_->http_->close(); }

}  // namespace stagelink::encoder_cache
