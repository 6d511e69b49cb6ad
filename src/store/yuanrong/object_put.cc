#include "store/yuanrong/object_put.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/fork_guard.h"
#include "base/random.h"
#include "store/yuanrong/aligned_bytes.h"
#include "store/yuanrong/channel/codes.h"
#include "store/yuanrong/object_header.h"
#include "store/yuanrong/store_key.h"

namespace stagelink::store::yuanrong {
namespace {

constexpr uint64_t kMostChunksOfPut = 1 << 16;

// Microseconds of now, then chance: later puts have later ones, and no two hosts make the same.
uint64_t next_generation() noexcept {
  static std::atomic<uint64_t> last{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  uint64_t next = static_cast<uint64_t>(us) << 12 | (random_u64() & 0xfff);
  uint64_t seen = last.load();
  do {
    next = std::max(next, seen + 1);
  } while (!last.compare_exchange_weak(seen, next));
  return next;
}

// What the three kinds of put share.
class PutBase : public WriterState {
 public:
  struct Parts {
    std::shared_ptr<WorkerPort> port;
    std::shared_ptr<LargeObjects> large;
    std::string key;
    uint64_t size = 0;
    Deadline deadline;
    PutShape shape;
  };
  explicit PutBase(Parts parts) : parts_(std::move(parts)), generation_(next_generation()) {}

  std::span<const std::span<std::byte>> pieces() const noexcept override { return pieces_; }
  uint64_t size() const noexcept override { return parts_.size; }
  uint64_t generation() const noexcept override { return sealed_ ? generation_ : 0; }

  Status seal() override {
    if (parts_.port->closed()) return Status(Reason::kClosed, "the store is closed");
    if (ended_) return Status(Reason::kInvalidState, "the put was sealed or aborted before");
    ended_ = true;
    // The time of create() is over perhaps: what is filled may still be published in that of one
    // request.
    deadline_ =
        Deadline::in(std::max(parts_.deadline.left(), parts_.port->options().request_timeout));
    SL_TRY(publish());
    sealed_ = true;
    return {};
  }

  void abort() noexcept override {
    if (!ended_) drop();
    ended_ = true;
  }

 protected:
  virtual Status publish() = 0;
  virtual void drop() noexcept = 0;

  LinkCall put_call(Op op, std::span<const std::string> keys) const noexcept {
    LinkCall call;
    call.op = op;
    call.keys = keys;
    call.ttl_s = parts_.shape.ttl_s;
    call.write_mode = parts_.shape.write_mode;
    return call;
  }
  // Checked for its code.
  Status carry_out(const LinkCall& call, Link* over) {
    auto answer = over == nullptr ? parts_.port->call(call, deadline_)
                                  : parts_.port->call_over(*over, call, deadline_);
    if (!answer.ok()) return answer.status();
    return answer->code == 0 ? Status() : parts_.port->failure(call.op, *answer);
  }
  Status publish_memory(HeldMemory& memory) {
    LinkCall call;
    call.op = Op::kPublish;
    call.handle = memory.handle();
    Status status = carry_out(call, memory.link().get());
    if (status.ok()) memory.forget();
    return status;
  }
  void erase_chunks(uint64_t generation, uint32_t count) {
    erase_chunk_keys(*parts_.port, parts_.key, generation, count);
  }
  // After the key names this put: the chunks of the one before it are nobody's.
  void replace(std::optional<LargeObjects::Chunks> now) {
    const auto before = parts_.large->replace(parts_.key, now);
    if (before) erase_chunks(before->generation, before->count);
  }

  Parts parts_;
  const uint64_t generation_;
  std::vector<std::span<std::byte>> pieces_;
  Deadline deadline_ = Deadline::in(Duration::zero());

 private:
  bool ended_ = false;
  bool sealed_ = false;
};

ObjectHeader whole_header(const std::string& key, uint64_t size, uint64_t generation) {
  ObjectHeader header;
  header.key = key;
  header.size = size;
  header.generation = generation;
  return header;
}

class SmallPut final : public PutBase {
 public:
  explicit SmallPut(Parts parts)
      : PutBase(std::move(parts)), value_(header_bytes(parts_.key.size()) + parts_.size) {
    pieces_ = {value_.bytes().subspan(header_bytes(parts_.key.size()))};
  }

 private:
  Status publish() override {
    write_header(whole_header(parts_.key, parts_.size, generation_), value_.bytes());
    const std::array<std::string, 1> keys = {store_key(parts_.key)};
    LinkCall call = put_call(Op::kSet, keys);
    call.value = value_.bytes();
    SL_TRY(carry_out(call, nullptr));
    replace(std::nullopt);
    return {};
  }
  void drop() noexcept override {}

  AlignedBytes value_;
};

class WholePut final : public PutBase {
 public:
  WholePut(Parts parts, HeldMemory memory) : PutBase(std::move(parts)), memory_(std::move(memory)) {
    pieces_ = {memory_.bytes().subspan(header_bytes(parts_.key.size()), parts_.size)};
  }

 private:
  Status publish() override {
    write_header(whole_header(parts_.key, parts_.size, generation_), memory_.bytes());
    SL_TRY(publish_memory(memory_));
    replace(std::nullopt);
    return {};
  }
  void drop() noexcept override { memory_ = {}; }

  HeldMemory memory_;
};

class ChunkedPut final : public PutBase {
 public:
  ChunkedPut(Parts parts, uint64_t chunk_bytes) : PutBase(std::move(parts)), chunk_(chunk_bytes) {}

  // The memory of all chunks, before the first byte is written.
  Status allocate() {
    deadline_ = parts_.deadline;
    const uint64_t count = (parts_.size + chunk_ - 1) / chunk_;
    if (count > kMostChunksOfPut) {
      return Status(Reason::kTooLarge,
                    fmt::format("an object of {} bytes would be {} chunks, at most {} "
                                "are possible; make chunk_bytes larger",
                                parts_.size, count, kMostChunksOfPut));
    }
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t bytes = std::min(chunk_, parts_.size - i * chunk_);
      SL_ASSIGN(HeldMemory memory, allocate_chunk(static_cast<uint32_t>(i), bytes));
      pieces_.push_back(memory.bytes().subspan(header_bytes(parts_.key.size()), bytes));
      chunks_.push_back(std::move(memory));
    }
    return {};
  }

 private:
  Result<HeldMemory> allocate_chunk(uint32_t index, uint64_t bytes) {
    const std::array<std::string, 1> keys = {chunk_key(parts_.key, generation_, index)};
    LinkCall call = put_call(Op::kCreate, keys);
    call.size = header_bytes(parts_.key.size()) + bytes;
    return create_memory(*parts_.port, call, deadline_);
  }

  Status publish() override {
    Status status = publish_chunks();
    if (status.ok()) status = publish_manifest();
    const auto count = static_cast<uint32_t>(chunks_.size());
    if (!status.ok()) {
      drop();
      erase_chunks(generation_, count);
      return status;
    }
    replace(LargeObjects::Chunks{generation_, count});
    return {};
  }

  Status publish_chunks() {
    for (size_t i = 0; i < chunks_.size(); ++i) {
      ObjectHeader header = whole_header(parts_.key, parts_.size, generation_);
      header.kind = ObjectKind::kChunk;
      header.chunks = static_cast<uint32_t>(i);
      header.chunk_bytes = pieces_[i].size();
      write_header(header, chunks_[i].bytes());
      SL_TRY(publish_memory(chunks_[i]));
    }
    return {};
  }

  Status publish_manifest() {
    ObjectHeader header = whole_header(parts_.key, parts_.size, generation_);
    header.kind = ObjectKind::kManifest;
    header.chunks = static_cast<uint32_t>(chunks_.size());
    header.chunk_bytes = chunk_;
    AlignedBytes value(header_bytes(parts_.key.size()));
    write_header(header, value.bytes());
    const std::array<std::string, 1> keys = {store_key(parts_.key)};
    LinkCall call = put_call(Op::kSet, keys);
    call.value = value.bytes();
    return carry_out(call, nullptr);
  }

  void drop() noexcept override { chunks_.clear(); }

  const uint64_t chunk_;
  std::vector<HeldMemory> chunks_;
};

}  // namespace

Result<HeldMemory> create_memory(WorkerPort& port, const LinkCall& call, const Deadline& deadline) {
  auto answer = port.call(call, deadline);
  if (!answer.ok()) {
    if (answer.status().code() != Code::kTimedOut) return answer.status();
    // The worker is well and has not answered: it looks for space.
    port.count(Trouble::kOutOfMemory);
    return Status(Reason::kNoSpace,
                  fmt::format("no space for {} bytes came free in time", call.size));
  }
  if (answer->code != 0) return port.failure(call.op, *answer);
  if (!answer->memory.front() || answer->memory.front().bytes().size() != call.size) {
    return Status(Reason::kFrame, "the broker gave memory of another size than asked for");
  }
  return std::move(answer->memory.front());
}

void erase_chunk_keys(WorkerPort& port, std::string_view key, uint64_t generation, uint32_t count) {
  for (uint32_t first = 0; first < count; first += kMaxKeysPerRequest) {
    std::vector<std::string> keys;
    for (uint32_t i = first; i < count && i < first + kMaxKeysPerRequest; ++i) {
      keys.push_back(chunk_key(key, generation, i));
    }
    LinkCall call;
    call.op = Op::kErase;
    call.keys = keys;
    auto answer = port.call(call, port.request_deadline());
    if (!answer.ok()) return;  // Logged. What stays goes by its time or by eviction.
    if (answer->code != 0) (void)port.failure(call.op, *answer);
  }
}

Result<WriterPtr> begin_put(std::shared_ptr<WorkerPort> port, std::shared_ptr<LargeObjects> large,
                            std::string_view key, uint64_t size, const PutTerms& terms,
                            const PutShape& shape) {
  const uint64_t head = header_bytes(key.size());
  const uint64_t chunk = port->options().chunk_bytes - head;
  WorkerPort& way = *port;
  PutBase::Parts parts{
      std::move(port), std::move(large), std::string(key), size, terms.deadline, shape};
  if (head + size <= kInlineBytes) {
    SL_TRY(way.ready(Op::kSet, terms.deadline));
    return WriterPtr(std::make_unique<SmallPut>(std::move(parts)));
  }
  if (size > chunk) {
    auto put = std::make_unique<ChunkedPut>(std::move(parts), chunk);
    SL_TRY(put->allocate());
    return WriterPtr(std::move(put));
  }
  const std::array<std::string, 1> keys = {store_key(key)};
  LinkCall call;
  call.op = Op::kCreate;
  call.keys = keys;
  call.ttl_s = shape.ttl_s;
  call.write_mode = shape.write_mode;
  call.size = head + size;
  SL_ASSIGN(HeldMemory memory, create_memory(way, call, terms.deadline));
  return WriterPtr(std::make_unique<WholePut>(std::move(parts), std::move(memory)));
}

Result<uint32_t> parse_write_mode(std::string_view name) {
  constexpr std::array<std::string_view, 5> kModes = {"NONE_L2_CACHE", "WRITE_THROUGH_L2_CACHE",
                                                      "WRITE_BACK_L2_CACHE", "NONE_L2_CACHE_EVICT",
                                                      "WRITE_BACK_L2_CACHE_EVICT"};
  const auto* const at = std::find(kModes.begin(), kModes.end(), name);
  if (at != kModes.end()) return static_cast<uint32_t>(at - kModes.begin());
  return Status(Reason::kInvalidArgument,
                fmt::format("write_mode: \"{}\" is none of {}", name, fmt::join(kModes, ", ")));
}

uint32_t ttl_seconds(Duration ttl) noexcept {
  if (ttl <= Duration::zero()) return 0;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(ttl).count();
  return seconds > 0x7fffffff ? 0x7fffffffU : static_cast<uint32_t>(seconds);
}

}  // namespace stagelink::store::yuanrong
