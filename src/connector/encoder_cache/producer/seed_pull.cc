#include "connector/encoder_cache/producer/seed_pull.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <pthread.h>

#include "base/log.h"
#include "base/text.h"

namespace stagelink::encoder_cache {
namespace {

using Json = nlohmann::json;

constexpr size_t kSeedThreads = 2;
constexpr size_t kMaxSeedJobs = 1024;
constexpr size_t kMaxSeedPeers = 256;
constexpr size_t kMaxSeedBytes = 4096;  // Of a message.
constexpr size_t kMaxSeedText = 512;    // Of a field.

std::string refusal(std::string_view why) {
  return Json{{"ok", false}, {"err", std::string(why)}}.dump(-1, ' ', true);
}

Status bad_ask(std::string_view field) {
  return Status(Reason::kInvalidArgument, fmt::format("field `{}` is missing or wrong", field));
}

}  // namespace

Result<SeedAsk> read_seed_ask(std::string_view text) {
  const Json message = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!message.is_object()) return Status(Reason::kFrame, "the message is no JSON object");
  const auto op = message.find("op");
  if (op == message.end() || *op != "pull") return Status(Reason::kUnknownKey, "unknown op");
  SeedAsk ask;
  const auto string = [&](const char* name, std::string& out) {
    const auto found = message.find(name);
    if (found == message.end() || !found->is_string()) return false;
    out = found->get<std::string>();
    return !out.empty() && out.size() <= kMaxSeedText;
  };
  const auto number = [&](const char* name, uint64_t& out) {
    const auto found = message.find(name);
    if (found == message.end() || !found->is_number_unsigned()) return false;
    out = found->get<uint64_t>();
    return true;
  };
  if (!string("mm_hash", ask.mm_hash)) return bad_ask("mm_hash");
  if (!string("dst_session", ask.session)) return bad_ask("dst_session");
  if (!number("dst_ptr", ask.address)) return bad_ask("dst_ptr");
  if (!number("nbytes", ask.nbytes)) return bad_ask("nbytes");
  return ask;
}

SeedPull::SeedPull(Engine& engine, const CellTable& cells, CacheMetrics& metrics, Duration timeout)
    : engine_(engine), cells_(cells), metrics_(metrics), timeout_(timeout) {
  for (size_t i = 0; i < kSeedThreads; ++i) threads_.emplace_back([this] { run(); });
}

SeedPull::~SeedPull() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool SeedPull::take(std::span<const std::byte> message, const pull::ForeignAnswer& answer) {
  std::string text(reinterpret_cast<const char*>(message.data()), message.size());
  const auto say = [&](const std::string& what) {
    answer(std::as_bytes(std::span(what.data(), what.size())));
  };
  if (text.empty() || text.front() != '{') return false;
  if (text.size() > kMaxSeedBytes) {
    say(refusal("the message is too long"));
    return true;
  }
  bool taken = false;
  {
    MutexLock lock(mutex_);
    taken = !stopping_ && jobs_.size() < kMaxSeedJobs;
    if (taken) jobs_.push_back({std::move(text), answer});
  }
  if (taken) {
    work_.notify_one();
  } else {
    say(refusal("too many pulls at a time"));
  }
  return true;
}

void SeedPull::run() {
  ::pthread_setname_np(::pthread_self(), "sl-ec-pull");
  while (true) {
    Job job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_) work_.wait(mutex_);
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    std::string answer;
    try {
      answer = serve(job.message);
    } catch (const std::exception& error) {
      metrics_.count_peer_pull(Reason::kFrame);
      answer = refusal(to_plain_text(error.what(), 200));
    }
    job.answer(std::as_bytes(std::span(answer.data(), answer.size())));
  }
}

std::string SeedPull::serve(const std::string& message) {
  const auto refuse = [this](Reason reason, std::string_view why) {
    metrics_.count_peer_pull(reason);
    return refusal(why);
  };
  auto ask = read_seed_ask(message);
  if (!ask.ok()) return refuse(ask.status().reason(), ask.status().message());
  const auto cell = cells_.find(ask->mm_hash);
  if (!cell.has_value()) return refuse(Reason::kNotFound, "unknown mm_hash");
  if (cell->info.nbytes != ask->nbytes) return refuse(Reason::kIncompatible, "size mismatch");
  Status status = write(*cell, ask->session, ask->address);
  if (status.scope() == Scope::kPeer) {
    // Another process may listen there by now.
    drop_peer(ask->session);
    status = write(*cell, ask->session, ask->address);
  }
  metrics_.count_peer_pull(status.reason());
  if (status.ok()) return Json{{"ok", true}, {"mooncake_ret", 0}}.dump();
  log_failure("encoder cache pull", status);
  return Json{{"ok", false}, {"mooncake_ret", -1}, {"err", status.to_string()}}.dump(-1, ' ', true);
}

Status SeedPull::write(const Cell& cell, const std::string& session, uint64_t address) {
  SL_ASSIGN(const auto peer, peer_at(session));
  const std::span<std::byte> bytes = cell.piece.bytes();
  SL_ASSIGN(const Region source,
            engine_.register_memory(bytes.data(), bytes.size(), {.access = Access::kReadOnly}));
  const Region* const local = &source;
  SL_ASSIGN(Session opened, peer->session_by_address(std::span(&local, 1)));
  const uint64_t offset = 0;
  const uint64_t size = bytes.size();
  const RangeList range{.local_offsets = std::span(&offset, 1),
                        .remote_offsets = std::span(&address, 1),
                        .sizes = std::span(&size, 1),
                        .local_regions = {},
                        .remote_regions = {}};
  SL_ASSIGN(Transfer transfer, opened.write(range, timeout_));
  return transfer.wait();
}

Result<std::shared_ptr<Peer>> SeedPull::peer_at(const std::string& session) {
  {
    MutexLock lock(mutex_);
    const auto found = peers_.find(session);
    if (found != peers_.end()) return found->second;
  }
  SL_ASSIGN(Peer made, engine_.connect(session));
  auto peer = std::make_shared<Peer>(std::move(made));
  MutexLock lock(mutex_);
  if (peers_.size() >= kMaxSeedPeers) peers_.erase(peers_.begin());
  peers_[session] = peer;
  return peer;
}

void SeedPull::drop_peer(const std::string& session) {
  std::shared_ptr<Peer> dropped;
  MutexLock lock(mutex_);
  const auto found = peers_.find(session);
  if (found == peers_.end()) return;
  dropped = std::move(found->second);
  peers_.erase(found);
}

}  // namespace stagelink::encoder_cache
