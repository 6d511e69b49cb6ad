#include "store/yuanrong/object_get.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/text.h"
#include "store/yuanrong/aligned_bytes.h"
#include "store/yuanrong/channel/codes.h"
#include "store/yuanrong/store_key.h"

namespace stagelink::store::yuanrong {
namespace {

using namespace std::chrono_literals;

// Of one request that waits. Others take their turn in between.
constexpr auto kLongestWait = 2s;
// After a request that should have waited and did not.
constexpr auto kBreath = 20ms;
constexpr uint32_t kChunksAtOnce = 4;  // Held at a time, so that a large get pins little.
constexpr int kTriesOfLarge = 3;       // Of an object that is replaced again and again.

std::string shown_key(std::string_view key) { return to_plain_text(key, 200); }

class WholeView final : public ViewState {
 public:
  WholeView(HeldMemory memory, size_t head, uint64_t generation)
      : memory_(std::move(memory)), head_(head), generation_(generation) {}
  std::span<const std::byte> bytes() const noexcept override {
    return std::span<const std::byte>(memory_.bytes()).subspan(head_);
  }
  uint64_t generation() const noexcept override { return generation_; }
  Status valid() const override { return memory_.link()->alive(); }

 private:
  HeldMemory memory_;
  size_t head_;
  uint64_t generation_;
};

// Put together from its chunks, in memory of this process.
class LargeView final : public ViewState {
 public:
  LargeView(AlignedBytes bytes, uint64_t generation)
      : bytes_(std::move(bytes)), generation_(generation) {}
  std::span<const std::byte> bytes() const noexcept override { return bytes_.bytes(); }
  uint64_t generation() const noexcept override { return generation_; }
  Status valid() const override { return {}; }

 private:
  AlignedBytes bytes_;
  uint64_t generation_;
};

// Entries without memory were not there. A miss is no failure.
Result<std::vector<HeldMemory>> fetch(WorkerPort& port, std::span<const std::string> store_keys,
                                      uint32_t wait_ms, const Deadline& deadline) {
  LinkCall call;
  call.op = Op::kGet;
  call.keys = store_keys;
  call.wait_ms = wait_ms;
  auto answer = port.call(call, deadline);
  if (!answer.ok()) return answer.status();
  if (answer->code == 0 || is_miss(answer->code)) return std::move(answer->memory);
  return port.failure(call.op, *answer);
}

Status note_corrupt(WorkerPort& port, std::string_view key, const Status& status) {
  port.count(Trouble::kCorrupt);
  Status out(status.reason(), fmt::format("key {}: {}", shown_key(key), status.message()));
  log_failure("yuanrong get", out);
  return out;
}

Status check_chunk(const ObjectHeader& manifest, uint32_t index, uint64_t bytes,
                   const ObjectHeader& chunk) {
  if (chunk.kind == ObjectKind::kChunk && chunk.generation == manifest.generation &&
      chunk.size == manifest.size && chunk.chunks == index && chunk.chunk_bytes == bytes) {
    return {};
  }
  return Status(Reason::kCorrupt, fmt::format("chunk {} does not belong to its manifest", index));
}

// Nothing: a chunk is missing.
Result<std::optional<AlignedBytes>> collect(WorkerPort& port, const ObjectHeader& manifest) {
  std::optional<AlignedBytes> all;
  try {
    all.emplace(manifest.size);
  } catch (const std::bad_alloc&) {
    return Status(Reason::kNoSpace,
                  fmt::format("no memory for an object of {} bytes", manifest.size));
  }
  for (uint32_t first = 0; first < manifest.chunks; first += kChunksAtOnce) {
    const uint32_t end = std::min(manifest.chunks, first + kChunksAtOnce);
    std::vector<std::string> keys;
    for (uint32_t i = first; i < end; ++i) {
      keys.push_back(chunk_key(manifest.key, manifest.generation, i));
    }
    SL_ASSIGN(const std::vector<HeldMemory> chunks, fetch(port, keys, 0, port.request_deadline()));
    for (uint32_t i = first; i < end; ++i) {
      const HeldMemory& chunk = chunks[i - first];
      if (!chunk) return std::optional<AlignedBytes>();
      const uint64_t at = i * manifest.chunk_bytes;
      const uint64_t bytes = std::min(manifest.chunk_bytes, manifest.size - at);
      SL_ASSIGN(const ObjectHeader header, read_header(chunk.bytes(), manifest.key));
      SL_TRY(check_chunk(manifest, i, bytes, header));
      std::memcpy(all->bytes().data() + at,
                  chunk.bytes().data() + header_bytes(manifest.key.size()), bytes);
    }
  }
  return all;
}

Status some_evicted(WorkerPort& port, std::string_view key) {
  port.count(Trouble::kEvicted);
  return Status(Reason::kEvicted,
                fmt::format("key {}: pieces of the object are gone: the worker's memory was full",
                            shown_key(key)));
}

Result<ViewPtr> view_of_large(WorkerPort& port, ObjectHeader manifest) {
  for (int i = 0; i < kTriesOfLarge; ++i) {
    auto all = collect(port, manifest);
    if (!all.ok()) {
      return all.status().code() == Code::kCorrupt ? note_corrupt(port, manifest.key, all.status())
                                                   : all.status();
    }
    if (all->has_value()) {
      return ViewPtr(std::make_unique<LargeView>(**std::move(all), manifest.generation));
    }
    // Replaced in between, or evicted?
    SL_TRY(port.judge_miss());
    SL_ASSIGN(std::optional<ObjectHeader> now, look_up(port, manifest.key));
    if (!now || now->generation == manifest.generation || now->kind != ObjectKind::kManifest) break;
    manifest = *std::move(now);
  }
  return some_evicted(port, manifest.key);
}

Result<ViewPtr> view_of(WorkerPort& port, std::string_view key, HeldMemory memory) {
  Result<ObjectHeader> header = read_header(memory.bytes(), key);
  if (!header.ok()) return note_corrupt(port, key, header.status());
  if (header->kind == ObjectKind::kManifest) return view_of_large(port, *std::move(header));
  if (header->kind == ObjectKind::kChunk) {
    return note_corrupt(port, key, Status(Reason::kCorrupt, "is a chunk of a larger one"));
  }
  return ViewPtr(
      std::make_unique<WholeView>(std::move(memory), header_bytes(key.size()), header->generation));
}

// The keys of one get, and which are still missing.
class Search {
 public:
  Search(WorkerPort& port, std::span<const std::string> keys) : port_(port), keys_(keys) {
    answers_.reserve(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      store_keys_.push_back(store_key(keys[i]));
      missing_.push_back(i);
      answers_.emplace_back(Status(Reason::kNotFound, ""));
    }
  }

  // One request for each batch of what is missing. With a wait, only the first batch is waited for.
  Status ask(uint32_t wait_ms, const Deadline& deadline) {
    std::vector<size_t> still;
    for (size_t first = 0; first < missing_.size(); first += kMaxKeysPerRequest) {
      const size_t count = std::min<size_t>(kMaxKeysPerRequest, missing_.size() - first);
      std::vector<std::string> batch;
      for (size_t i = 0; i < count; ++i) batch.push_back(store_keys_[missing_[first + i]]);
      auto found = fetch(port_, batch, first == 0 ? wait_ms : 0, deadline);
      if (!found.ok()) return found.status();
      for (size_t i = 0; i < count; ++i) {
        const size_t key = missing_[first + i];
        if (!(*found)[i]) {
          still.push_back(key);
          continue;
        }
        answers_[key] = view_of(port_, keys_[key], std::move((*found)[i]));
      }
    }
    missing_ = std::move(still);
    return {};
  }

  bool done() const noexcept { return missing_.empty(); }
  // What the rest is answered with.
  void end(const Status& why) {
    for (const size_t key : missing_) {
      const bool of_key = why.code() == Code::kNotFound || why.code() == Code::kTimedOut;
      answers_[key] = of_key ? Status(why.reason(), fmt::format("key {}: {}", shown_key(keys_[key]),
                                                                why.message()))
                             : why;
    }
    missing_.clear();
  }
  std::vector<Result<ViewPtr>> take() { return std::move(answers_); }

 private:
  WorkerPort& port_;
  std::span<const std::string> keys_;
  std::vector<std::string> store_keys_;
  std::vector<size_t> missing_;
  std::vector<Result<ViewPtr>> answers_;
};

// The datasystem answers "not found" a tenth of the time too early, and at once where the key's
// worker is cut off: the deadline is ours to keep.
Status wait_for(WorkerPort& port, Search& search, const Deadline& deadline) {
  while (!search.done()) {
    if (deadline.passed()) {
      SL_TRY(port.judge_miss());
      return Status(Reason::kTimedOut, "nobody has put it");
    }
    const Duration wait = std::min<Duration>(deadline.left(), kLongestWait);
    const auto wait_ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
    const auto begin = Deadline::Clock::now();
    Status status = search.ask(static_cast<uint32_t>(wait_ms), deadline);
    if (status.code() == Code::kTimedOut && deadline.passed()) continue;
    SL_TRY(status);
    if (!search.done() && Deadline::Clock::now() - begin < wait / 2) {
      port.pause(std::min<Duration>(deadline.left(), kBreath));
    }
  }
  return {};
}

}  // namespace

std::vector<Result<ViewPtr>> get_objects(const std::shared_ptr<WorkerPort>& port,
                                         std::span<const std::string> keys, const GetTerms& terms) {
  Search search(*port, keys);
  const Deadline look = terms.waits ? terms.deadline : port->request_deadline();
  Status status = search.ask(0, look);
  if (status.ok() && !search.done()) {
    if (terms.waits) {
      status = wait_for(*port, search, terms.deadline);
    } else if (status = port->judge_miss(); status.ok()) {
      status = Status(Reason::kNotFound, "nobody has put it");
    }
  }
  if (!search.done()) search.end(status);
  return search.take();
}

Result<std::optional<ObjectHeader>> look_up(WorkerPort& port, std::string_view key) {
  const std::array<std::string, 1> keys = {store_key(key)};
  SL_ASSIGN(const std::vector<HeldMemory> found, fetch(port, keys, 0, port.request_deadline()));
  if (!found.front()) {
    SL_TRY(port.judge_miss());
    return std::optional<ObjectHeader>();
  }
  SL_ASSIGN(ObjectHeader header, read_header(found.front().bytes(), key));
  return std::optional<ObjectHeader>(std::move(header));
}

}  // namespace stagelink::store::yuanrong
