#include "connector/encoder_cache/consumer/seed_source.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "stagelink/engine.h"

namespace stagelink::encoder_cache {
namespace {

using Json = nlohmann::json;

constexpr size_t kSeedAsksAtOnce = 16;  // Bounds the memory beside the pool.
constexpr size_t kMaxIdleSeedLines = 64;
constexpr size_t kMaxSeedAnswer = 4096;
constexpr Duration kSeedTick = std::chrono::milliseconds(100);
constexpr size_t kSchemeBytes = std::string_view("tcp://").size();

Status read_seed_answer(std::span<const std::byte> answer) {
  const std::string_view text(reinterpret_cast<const char*>(answer.data()), answer.size());
  const Status odd(Reason::kFrame, "the producer's answer is none to a pull");
  if (text.size() > kMaxSeedAnswer) return odd;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("ok") || !json["ok"].is_boolean()) return odd;
  if (json["ok"].get<bool>()) return {};
  const auto err = json.find("err");
  const std::string why = err != json.end() && err->is_string()
                              ? to_plain_text(err->get_ref<const std::string&>(), 200)
                              : "its engine did not write it";
  const Reason reason = why == "unknown mm_hash" ? Reason::kNotFound
                        : why == "size mismatch" ? Reason::kIncompatible
                                                 : Reason::kUnreachable;
  return Status(reason, fmt::format("the producer says: {}", why));
}

}  // namespace

// One pull under way.
struct SeedSource::Pulling {
  Status status;
  std::optional<Region> region;  // Where the producer writes.
  Line line;
};

std::vector<Result<pull::Piece>> SeedSource::get(std::span<const Ask> asks,
                                                 const Deadline& deadline,
                                                 const Interrupted& interrupted) {
  std::vector<Result<pull::Piece>> outcomes;
  outcomes.reserve(asks.size());
  std::map<std::string_view, Status>
      silent;  // Producers that cannot be reached cost their time once.
  for (size_t first = 0; first < asks.size(); first += kSeedAsksAtOnce) {
    const auto some = asks.subspan(first, std::min(kSeedAsksAtOnce, asks.size() - first));
    std::vector<Pulling> pullings(some.size());
    for (size_t i = 0; i < some.size(); ++i) {
      const auto known = silent.find(some[i].entry->producer_zmq);
      pullings[i].status =
          known != silent.end() ? known->second : begin(some[i], pullings[i], deadline);
      if (pullings[i].status.code() == Code::kUnreachable) {
        silent.emplace(some[i].entry->producer_zmq, pullings[i].status);
      }
    }
    for (size_t i = 0; i < some.size(); ++i) {
      outcomes.push_back(take(some[i], pullings[i], deadline, interrupted));
    }
  }
  return outcomes;
}

Status SeedSource::begin(const Ask& ask, Pulling& pulling, const Deadline& deadline) {
  SL_TRY(check_producer_address(ask.entry->producer_zmq));
  const uint64_t bytes = ask.entry->info.nbytes;
  SL_ASSIGN(Region region, pull_.engine().allocate(bytes));
  const Json message = {{"op", "pull"},
                        {"mm_hash", ask.mm_hash},
                        {"dst_session", pull_.engine().address()},
                        {"dst_ptr", reinterpret_cast<uint64_t>(region.bytes().data())},
                        {"nbytes", bytes}};
  pulling.region.emplace(std::move(region));
  SL_ASSIGN(pulling.line, line_to(ask.entry->producer_zmq));
  const std::string text = message.dump();
  const std::array<zmq::FrameSpan, 2> frames = {zmq::FrameSpan(), std::as_bytes(std::span(text))};
  const Deadline reached = Deadline::earlier(deadline, Deadline::in(patience_));
  if (const Status sent = pulling.line->send(frames, reached); !sent.ok()) {
    return Status(Reason::kUnreachable, fmt::format("nobody answers at {} ({})",
                                                    ask.entry->producer_zmq, sent.message()));
  }
  return {};
}

Status SeedSource::await(Pulling& pulling, const Deadline& deadline,
                         const Interrupted& interrupted) {
  while (true) {
    SL_ASSIGN(const auto frames,
              pulling.line->receive(Deadline::earlier(deadline, Deadline::in(kSeedTick))));
    if (frames.has_value()) return read_seed_answer(frames->back());
    if (pull_.closed()) return Status(Reason::kClosed, "the consumer is closed");
    if (interrupted != nullptr && interrupted()) {
      return Status(Reason::kCancelled, "the load was interrupted");
    }
    if (deadline.passed()) return Status(Reason::kTimedOut, "the producer does not answer");
  }
}

Result<pull::Piece> SeedSource::take(const Ask& ask, Pulling& pulling, const Deadline& deadline,
                                     const Interrupted& interrupted) {
  Status& status = pulling.status;
  if (status.ok()) {
    status = await(pulling, deadline, interrupted);
    const bool is_answered = status.code() != Code::kTimedOut &&
                             status.code() != Code::kCancelled &&
                             status.code() != Code::kInvalidState;
    // An answer that comes late must not be taken for the next one.
    if (is_answered) keep(ask.entry->producer_zmq, std::move(pulling.line));
  }
  const std::shared_ptr<const void> hold =
      pulling.region.has_value() ? pulling.region->hold() : nullptr;
  const std::span<std::byte> bytes =
      pulling.region.has_value() ? pulling.region->bytes() : std::span<std::byte>();
  // Nobody writes there any more, or the bytes are not believed.
  if (status.ok()) status = pulling.region->deregister();
  pulling.region.reset();
  if (!status.ok()) return status;
  if (!ask.into.empty()) {
    std::memcpy(ask.into.data(), bytes.data(), ask.into.size());
    return pull::Piece();
  }
  SL_ASSIGN(pull::Piece piece, pull_.allocate(bytes.size(), deadline.left(), interrupted));
  std::memcpy(piece.bytes().data(), bytes.data(), bytes.size());
  return piece;
}

Result<SeedSource::Line> SeedSource::line_to(const std::string& producer_zmq) {
  SL_ASSIGN(const Endpoint endpoint, parse_endpoint(producer_zmq.substr(kSchemeBytes)));
  MutexLock lock(mutex_);
  if (const auto found = idle_.find(producer_zmq); found != idle_.end()) {
    return std::move(idle_.extract(found).mapped());
  }
  if (context_ == nullptr) {
    SL_ASSIGN(auto library, zmq::Library::load());
    SL_ASSIGN(context_, zmq::Context::create(std::move(library)));
  }
  SL_ASSIGN(zmq::Dealer made, zmq::Dealer::connect(context_, endpoint));
  return std::make_unique<zmq::Dealer>(std::move(made));
}

void SeedSource::keep(const std::string& producer_zmq, Line line) {
  Line dropped;  // Goes without the lock.
  MutexLock lock(mutex_);
  if (idle_.size() >= kMaxIdleSeedLines) dropped = std::move(idle_.extract(idle_.begin()).mapped());
  idle_.emplace(producer_zmq, std::move(line));
}

}  // namespace stagelink::encoder_cache
