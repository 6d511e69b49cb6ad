#include "cli/bench/target/target_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stagelink::cli::bench {

namespace {

// Touching, filling and checking a gigabyte on a loaded machine takes up to minutes.
constexpr auto kAnswerTimeout = std::chrono::seconds(180);
constexpr auto kStopTimeout = std::chrono::seconds(10);

std::vector<std::string> command_line(const TargetOptions& options) {
  std::string transports;
  for (const std::string& name : options.transports) {
    transports += (transports.empty() ? "" : ",") + name;
  }
  std::vector<std::string> words = {
      "stagelink",    kTargetCommand, "--parent",     std::to_string(::getpid()),
      "--transports", transports,     "--huge-pages", options.huge_pages};
  if (options.core) {
    words.emplace_back("--core");
    words.push_back(std::to_string(*options.core));
  }
  return words;
}

Result<pid_t> spawn(std::vector<std::string> words, int socket) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, socket, kTargetSocket);
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return Status(Reason::kLimit, fmt::format("cannot start the target: {}", std::strerror(error)));
}

Message shaped(Request request, uint64_t region, const Shape& shape, uint64_t seed, uint64_t salt) {
  Message message;
  message.request = request;
  message.values = {region, shape.block_bytes, shape.blocks, seed, salt, 0};
  return message;
}

}  // namespace

Result<std::unique_ptr<TargetProcess>> TargetProcess::start(const TargetOptions& options) {
  SL_ASSIGN(auto channel, ControlChannel::create());
  UniqueFd theirs = std::move(channel.second);
  // A socket that already has the child's number would be closed there instead of handed on.
  if (theirs.get() == kTargetSocket) theirs.reset(::fcntl(theirs.get(), F_DUPFD_CLOEXEC, 10));
  SL_ASSIGN(const pid_t pid, spawn(command_line(options), theirs.get()));
  theirs.reset();
  std::unique_ptr<TargetProcess> target(new TargetProcess(pid, std::move(channel.first)));
  Message hello;
  hello.request = Request::kDescriptor;
  SL_ASSIGN(Message answer, target->ask(hello));
  target->descriptor_ = std::move(answer.payload);
  return target;
}

TargetProcess::TargetProcess(pid_t pid, ControlChannel channel) noexcept
    : pid_(pid), channel_(std::move(channel)) {}

TargetProcess::~TargetProcess() {
  Message stop;
  stop.request = Request::kStop;
  const Deadline deadline = Deadline::in(kStopTimeout);
  const bool told = channel_.send(stop, deadline).ok() && channel_.receive(deadline).ok();
  if (!told) ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<TargetRegion> TargetProcess::allocate(uint64_t bytes) {
  return make_region(Request::kAllocate, bytes);
}

Result<TargetRegion> TargetProcess::register_private(uint64_t bytes) {
  return make_region(Request::kRegister, bytes);
}

Result<HostedEngine> TargetProcess::host(uint64_t bytes) {
  Message message;
  message.request = Request::kHost;
  message.values[0] = bytes;
  SL_ASSIGN(const Message answer, ask(message));
  HostedBlobs blobs = decode_hosted(answer.payload);
  HostedEngine hosted;
  hosted.engine = std::move(blobs.engine);
  SL_ASSIGN(hosted.region, RegionDesc::unpack(blobs.region));
  return hosted;
}

Result<uint64_t> TargetProcess::memory_bytes() {
  Message message;
  message.request = Request::kMemory;
  SL_ASSIGN(const Message answer, ask(message));
  return answer.values[0];
}

Result<TargetRegion> TargetProcess::make_region(Request request, uint64_t bytes) {
  Message message;
  message.request = request;
  message.values[0] = bytes;
  SL_ASSIGN(const Message answer, ask(message));
  TargetRegion region;
  region.number = answer.values[0];
  SL_ASSIGN(region.descriptor, RegionDesc::unpack(answer.payload));
  return region;
}

Status TargetProcess::fill(uint64_t region, uint64_t salt) {
  Message message;
  message.request = Request::kFill;
  message.values = {region, salt, 0, 0, 0, 0};
  return ask(message).status();
}

Status TargetProcess::poison(uint64_t region, const Shape& shape, uint64_t seed) {
  return ask(shaped(Request::kPoison, region, shape, seed, 0)).status();
}

Result<uint64_t> TargetProcess::count_right(uint64_t region, const Shape& shape, uint64_t seed,
                                            uint64_t salt) {
  SL_ASSIGN(const Message answer, ask(shaped(Request::kCheck, region, shape, seed, salt)));
  return answer.values[0];
}

Status TargetProcess::begin_receive(uint64_t count, bool asleep) {
  Message message;
  message.request = Request::kReceive;
  message.values = {count, asleep ? uint64_t{1} : uint64_t{0}, 0, 0, 0, 0};
  return begin(message);
}

Result<Latency> TargetProcess::end_receive() {
  SL_ASSIGN(const Message answer, end());
  return Latency{.p50_us = static_cast<double>(answer.values[0]) * 1e-3,
                 .p99_us = static_cast<double>(answer.values[1]) * 1e-3};
}

Status TargetProcess::begin_socket(uint64_t region, uint16_t port) {
  Message message;
  message.request = Request::kSocket;
  message.values = {region, port, 0, 0, 0, 0};
  return begin(message);
}

Status TargetProcess::end_socket() { return end().status(); }

Result<Endpoint> TargetProcess::listen() {
  Message message;
  message.request = Request::kListen;
  SL_ASSIGN(const Message answer, ask(message));
  return Endpoint{answer.text(), static_cast<uint16_t>(answer.values[0])};
}

Status TargetProcess::begin_arrivals(uint64_t count) {
  Message message;
  message.request = Request::kArrivals;
  message.values[0] = count;
  return begin(message);
}

Result<Arrivals> TargetProcess::end_arrivals() {
  SL_ASSIGN(const Message answer, end());
  return Arrivals{.last_us = static_cast<double>(answer.values[0]) * 1e-3,
                  .p50_us = static_cast<double>(answer.values[1]) * 1e-3,
                  .p99_us = static_cast<double>(answer.values[2]) * 1e-3};
}

Status TargetProcess::begin_idle(std::chrono::milliseconds duration) {
  Message message;
  message.request = Request::kIdle;
  message.values[0] = static_cast<uint64_t>(duration.count());
  return begin(message);
}

Status TargetProcess::end_idle() { return end().status(); }

Status TargetProcess::begin(const Message& message) {
  return channel_.send(message, Deadline::in(kAnswerTimeout));
}

Result<Message> TargetProcess::end() {
  SL_ASSIGN(Message answer, channel_.receive(Deadline::in(kAnswerTimeout)));
  if (answer.failed == 0) return answer;
  return Status(Reason::kSystem, "in the target process: " + answer.text());
}

Result<Message> TargetProcess::ask(const Message& message) {
  SL_TRY(begin(message));
  return end();
}

}  // namespace stagelink::cli::bench
