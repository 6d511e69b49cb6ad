#include "cli/replay/rank/prefill_link.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace stagelink::cli::replay {
namespace {

// Doubled after every failure in a row. A rank that is started again is greeted at once.
constexpr auto kFirstPause = std::chrono::milliseconds(200);
constexpr uint32_t kMaxDoublings = 4;

}  // namespace

PrefillLink::PrefillLink(const RankContext& context, uint32_t rank)
    : context_(context), rank_(rank), pair_(context.engine, context.pool.region()) {}

void PrefillLink::set_descriptor(std::vector<std::byte> descriptor) {
  drop();
  descriptor_ = std::move(descriptor);
  failed_tries_ = 0;
  next_try_ = Clock::now();
}

Status PrefillLink::on_hello(const InstanceId& source, const Hello& hello) {
  if (hello.rank != rank_) return Status(Reason::kFrame, "a hello of another rank");
  instance_ = source;
  if (!pair_.connected()) return {};  // Greeted again soon.
  if (context_.config.mode == Mode::kRead) {
    const Status opened = pair_.open_session(hello.region, hello.layout.pool_blocks);
    if (!opened.ok()) {
      drop();
      return opened;
    }
  }
  state_ = State::kUp;
  failed_tries_ = 0;
  return {};
}

Status PrefillLink::step() {
  const auto now = Clock::now();
  if (state_ == State::kDown) {
    if (!descriptor_.empty() && now >= next_try_) greet();
    return {};
  }
  Status failure = pair_.flush();
  if (failure.ok() && !pair_.connected()) {
    failure = Status(Reason::kPeerLost, fmt::format("prefill rank {} is lost", rank_));
  }
  if (failure.ok() && state_ == State::kGreeted && now >= answer_due_) {
    failure = Status(Reason::kTimedOut, fmt::format("prefill rank {} does not answer", rank_));
  }
  if (failure.ok()) return {};
  last_failure_ = failure;
  const bool was_up = state_ == State::kUp;
  drop();
  return was_up ? failure : Status();
}

void PrefillLink::drop() {
  pair_.drop();
  state_ = State::kDown;
  next_try_ = Clock::now() + kFirstPause * (1 << std::min(failed_tries_, kMaxDoublings));
  ++failed_tries_;
}

bool PrefillLink::is(const InstanceId& instance) const noexcept { return instance_ == instance; }

void PrefillLink::greet() {
  const RankConfig& config = context_.config;
  last_failure_ = pair_.connect(descriptor_, config.timeout);
  if (!last_failure_.ok()) {
    drop();
    return;
  }
  pair_.post({0, 0,
              Hello{config.rank, config.layout, context_.engine.descriptor(),
                    context_.pool.region().descriptor().pack()}});
  state_ = State::kGreeted;
  answer_due_ = Clock::now() + config.timeout;
}

}  // namespace stagelink::cli::replay
