#include "cli/bench/target/target_loop.h"

#include <csignal>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli/bench/limit/socket_server.h"
#include "cli/bench/moriio/notice_log.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/private_memory.h"
#include "cli/bench/rig/process_load.h"
#include "cli/commands.h"
#include "config/engine_config.h"
#include "stagelink/engine.h"

namespace stagelink::cli::bench {

namespace {

// Longer than any pause of the initiator between two requests.
constexpr auto kRequestTimeout = std::chrono::minutes(10);
constexpr auto kAnswerTimeout = std::chrono::seconds(10);
constexpr auto kReceiveTimeout = std::chrono::seconds(30);

// Answers requests with one engine.
//
// Thread-safety: one thread.
class Target {
 public:
  explicit Target(std::unique_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}

  Result<Message> answer(const Message& request) {
    switch (request.request) {
      case Request::kDescriptor: {
        Message message;
        message.payload = engine_->descriptor();
        return message;
      }
      case Request::kAllocate: return allocate(request.values[0]);
      case Request::kRegister: return register_private(request.values[0]);
      case Request::kHost: return host(request.values[0]);
      case Request::kSocket: return serve_socket_limit(request.values[0], request.values[1]);
      case Request::kMemory: return memory_share();
      case Request::kFill: return fill(request.values[0], request.values[1]);
      case Request::kPoison: return poison(request);
      case Request::kCheck: return check(request);
      case Request::kReceive: return receive(request.values[0], request.values[1] != 0);
      case Request::kListen: return listen();
      case Request::kArrivals: return arrivals(request.values[0]);
      case Request::kIdle: return idle(std::chrono::milliseconds(request.values[0]));
      case Request::kStop: return stop();
    }
    return Status(Reason::kInvalidArgument, "unknown request");
  }

 private:
  Result<Message> allocate(uint64_t bytes) {
    SL_ASSIGN(Region region, engine_->allocate(bytes));
    Message message;
    message.values[0] = regions_.size();
    message.payload = region.descriptor().pack();
    regions_.push_back(std::move(region));
    return message;
  }

  Result<Message> register_private(uint64_t bytes) {
    SL_ASSIGN(PrivateMemory memory, PrivateMemory::create(bytes));
    const std::span<std::byte> span = memory.bytes();
    SL_ASSIGN(Region region, engine_->register_memory(span.data(), span.size()));
    private_memory_.push_back(std::move(memory));
    Message message;
    message.values[0] = regions_.size();
    message.payload = region.descriptor().pack();
    regions_.push_back(std::move(region));
    return message;
  }

  // An engine that is another peer to the initiator, although it shares this process.
  Result<Message> host(uint64_t bytes) {
    EngineOptions options = engine_->options();
    options.name = fmt::format("bench-hosted-{}", hosted_.size());
    SL_ASSIGN(std::unique_ptr<Engine> engine, Engine::create(options));
    SL_ASSIGN(Region region, engine->allocate(bytes));
    Message message;
    message.payload = encode_hosted({engine->descriptor(), region.descriptor().pack()});
    hosted_.push_back({std::move(engine), std::move(region)});
    return message;
  }

  Result<Message> serve_socket_limit(uint64_t region, uint64_t port) {
    SL_ASSIGN(const std::span<std::byte> bytes, memory(region));
    SL_ASSIGN(const TcpEnd end, TcpEnd::connect(static_cast<uint16_t>(port), kRequestTimeout));
    SL_TRY(serve_socket(end, bytes));
    return Message();
  }

  static Result<Message> memory_share() {
    Message message;
    message.values[0] = memory_share_bytes();
    return message;
  }

  Result<std::span<std::byte>> memory(uint64_t region) {
    if (region >= regions_.size()) return Status(Reason::kInvalidArgument, "no such region");
    return regions_[region].bytes();
  }

  Result<Message> fill(uint64_t region, uint64_t salt) {
    SL_ASSIGN(const std::span<std::byte> bytes, memory(region));
    fill_content(bytes, salt);
    return Message();
  }

  Result<Message> poison(const Message& request) {
    SL_ASSIGN(const std::span<std::byte> bytes, memory(request.values[0]));
    const Shape shape{.block_bytes = request.values[1], .blocks = request.values[2]};
    for (const uint64_t offset : make_picks(shape, request.values[3]).remote) {
      std::memset(bytes.subspan(offset, shape.block_bytes).data(), 0xee, shape.block_bytes);
    }
    return Message();
  }

  Result<Message> check(const Message& request) {
    SL_ASSIGN(const std::span<std::byte> bytes, memory(request.values[0]));
    const Shape shape{.block_bytes = request.values[1], .blocks = request.values[2]};
    const Picks picks = make_picks(shape, request.values[3]);
    Message message;
    for (size_t i = 0; i < picks.remote.size(); ++i) {
      const auto piece = bytes.subspan(picks.remote[i], shape.block_bytes);
      if (holds_content(piece, picks.local[i], request.values[4])) ++message.values[0];
    }
    return message;
  }

  Result<Message> listen() {
    if (notices_ == nullptr) {
      SL_ASSIGN(notices_, NoticeLog::start());
    }
    Message message;
    message.values[0] = notices_->endpoint().port;
    const auto host = std::as_bytes(std::span(notices_->endpoint().host));
    message.payload.assign(host.begin(), host.end());
    return message;
  }

  Result<Message> arrivals(uint64_t count) {
    if (notices_ == nullptr) return Status(Reason::kInvalidArgument, "nobody listens");
    return notices_->await(count);
  }

  Result<Message> receive(uint64_t count, bool asleep) {
    const Deadline deadline = Deadline::in(kReceiveTimeout);
    std::vector<double> delays_us;
    while (delays_us.size() < count) {
      if (deadline.passed()) {
        return Status(Reason::kTimedOut,
                      fmt::format("{} of {} notifications came", delays_us.size(), count));
      }
      const Duration wait = asleep ? Duration(std::chrono::seconds(1)) : Duration::zero();
      SL_ASSIGN(const std::vector<Notification> arrived, engine_->notifications(wait));
      const double now = now_us();
      for (const Notification& notification : arrived) {
        double sent_us = 0;
        if (notification.payload.size() != sizeof sent_us) continue;
        std::memcpy(&sent_us, notification.payload.data(), sizeof sent_us);
        delays_us.push_back(now - sent_us);
      }
    }
    Message message;
    message.values[0] = static_cast<uint64_t>(percentile(delays_us, 0.5) * 1e3);
    message.values[1] = static_cast<uint64_t>(percentile(delays_us, 0.99) * 1e3);
    return message;
  }

  Result<Message> idle(std::chrono::milliseconds duration) {
    const Deadline deadline = Deadline::in(duration);
    while (!deadline.passed()) SL_TRY(engine_->notifications(deadline.left()).status());
    return Message();
  }

  Result<Message> stop() {
    for (Hosted& hosted : hosted_) {
      SL_TRY(hosted.region.deregister());
      SL_TRY(hosted.engine->close());
    }
    hosted_.clear();
    for (Region& region : regions_) SL_TRY(region.deregister());
    regions_.clear();
    SL_TRY(engine_->close());
    return Message();
  }

  struct Hosted {
    std::unique_ptr<Engine> engine;
    Region region;
  };

  // Members end in reverse order: regions before the memory that they name.
  std::vector<PrivateMemory> private_memory_;
  std::unique_ptr<Engine> engine_;
  std::vector<Region> regions_;
  std::vector<Hosted> hosted_;
  std::unique_ptr<NoticeLog> notices_;
};

Status serve(const TargetOptions& options) {
  ControlChannel channel{UniqueFd(kTargetSocket)};
  if (options.core) SL_TRY(pin_to_core(*options.core));
  EngineOptions engine_options;
  engine_options.name = "bench-target";
  engine_options.transports = options.transports;
  SL_TRY(config::set_option(engine_options, "huge_pages", options.huge_pages));
  SL_ASSIGN(std::unique_ptr<Engine> engine, Engine::create(engine_options));
  Target target(std::move(engine));
  for (;;) {
    SL_ASSIGN(const Message request, channel.receive(Deadline::in(kRequestTimeout)));
    Result<Message> outcome = target.answer(request);
    Message answer;
    if (outcome.ok()) {
      answer = *std::move(outcome);
    } else {
      const std::string text = outcome.status().to_string();
      const auto bytes = std::as_bytes(std::span(text));
      answer.failed = 1;
      answer.payload.assign(bytes.begin(), bytes.end());
    }
    SL_TRY(channel.send(answer, Deadline::in(kAnswerTimeout)));
    if (request.request == Request::kStop) return Status();
  }
}

}  // namespace

int run_target(const TargetOptions& options, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above.
  if (::getppid() != parent) return kExitUsage;
  raise_file_limit();
  const Status status = serve(options);
  if (status.ok() || status.code() == Code::kPeerLost) return kExitOk;
  fmt::print(stderr, "bench target: {}\n", status.to_string());
  return kExitFailed;
}

}  // namespace stagelink::cli::bench
