#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <sys/types.h>

#include "stagelink/object_store.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

// What the two processes of a measurement share beside the store.
struct PairPage {
  static constexpr size_t kFigures = 4096;
  std::atomic<uint32_t> turn{0};  // Counts up; each side waits for its numbers.
  std::atomic<uint32_t> sleepers{0};
  std::atomic<uint32_t> failed{0};
  double figures[kFigures] = {};  // Of the child, in microseconds.

  // False if the other side has failed, or did not come for seconds. Spins first, for turns that
  // are measured; who waits for longer sleeps, and takes no time from what others measure.
  bool wait_for(uint32_t value) noexcept;
  void set(uint32_t value) noexcept;
};

// A second process, forked, and the page between it and this one. It ends with this.
//
// Thread-safety: one thread at a time.
class ForkedPair {
 public:
  // `role` runs in the child. To be called while this process has no threads.
  static Result<ForkedPair> start(const std::function<Status(PairPage&)>& role);
  ForkedPair(ForkedPair&& other) noexcept
      : page_(std::exchange(other.page_, nullptr)), pid_(std::exchange(other.pid_, -1)) {}
  ForkedPair& operator=(ForkedPair&&) = delete;
  ~ForkedPair();

  PairPage& page() noexcept { return *page_; }
  pid_t pid() const noexcept { return pid_; }

 private:
  ForkedPair(PairPage* page, pid_t pid) noexcept : page_(page), pid_(pid) {}

  PairPage* page_;  // Null: moved from.
  pid_t pid_;
};

// A second process that has the store of the same options open.
//
// Thread-safety: one thread at a time.
class StorePair {
 public:
  using Role = std::function<Status(ObjectStore&, PairPage&)>;

  // `role` runs in the child with a store of its own. To be called while this process has neither
  // threads nor that store.
  static Result<std::unique_ptr<StorePair>> start(const StoreOptions& options, const Role& role);

  PairPage& page() noexcept { return process_.page(); }
  pid_t pid() const noexcept { return process_.pid(); }

 private:
  explicit StorePair(ForkedPair process) noexcept : process_(std::move(process)) {}
  ForkedPair process_;
};

// An arena for a measurement, in nobody's way.
StoreOptions bench_store_options(uint64_t capacity);

}  // namespace stagelink::cli::bench
