#pragma once

#include <cstddef>
#include <span>

#include "base/unique_fd.h"
#include "stagelink/region.h"
#include "stagelink/result.h"

namespace stagelink::memory {

struct SegmentOptions {
  Access access = Access::kReadWrite;
  Effort pin = Effort::kOff;
  Effort huge_pages = Effort::kOff;
  Effort prefault = Effort::kTry;
  int32_t numa_node = -1;
};

// Shareable memory of this process: a sealed memfd (SHRINK|GROW, and FUTURE_WRITE if peers may only
// read), its pages reserved up front, mapped once at 2 MiB alignment, with a SegmentTrailer in the
// page behind the data. All bytes start at zero.
//
// Thread-safety: const methods may run at the same time.
class Segment {
 public:
  // Errors: invalid_argument (0 bytes), limit (too_large, memlock, huge_pages, numa, nofile), each
  // naming the limit, its value and the request; no_space (shm_full). Nothing is left behind.
  static Result<Segment> create(size_t bytes, const SegmentOptions& options, InstanceId instance);
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  int fd() const noexcept { return fd_.get(); }
  uint64_t nonce() const noexcept { return nonce_; }

 private:
  Segment() noexcept = default;
  UniqueFd fd_;
  std::span<std::byte> bytes_;
  size_t mapped_bytes_ = 0;
  uint64_t nonce_ = 0;
};

// A peer's segment, mapped here.
//
// Thread-safety: const methods may run at the same time.
class MappedSegment {
 public:
  // Checks before use: seals (SHRINK|GROW must be set, else a peer could make us fault), file size
  // against desc.bytes, trailer against desc. Maps populated. Errors: corrupt, superseded (another
  // nonce: the region was replaced), limit.
  static Result<MappedSegment> map(const UniqueFd& fd, const RegionDesc& desc);
  MappedSegment(MappedSegment&& other) noexcept;
  MappedSegment& operator=(MappedSegment&& other) noexcept;
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;
  ~MappedSegment();

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  bool writable() const noexcept { return writable_; }

 private:
  MappedSegment() noexcept = default;
  std::span<std::byte> bytes_;
  size_t mapped_bytes_ = 0;
  bool writable_ = false;
};

// Small shared pages (region table, peer page, doorbell): a sealed memfd and its mapping.
class SharedPages {
 public:
  enum class Peers : uint8_t { kMayWrite, kMayRead };
  static Result<SharedPages> create(const char* name, size_t bytes, Peers peers);
  // For this process alone: no fd, and memory only for what is touched.
  static Result<SharedPages> create_unshared(size_t bytes);
  // Takes what a peer sent; checks size and seals.
  static Result<SharedPages> open(UniqueFd fd, size_t bytes, bool writable);
  SharedPages() noexcept = default;
  SharedPages(SharedPages&& other) noexcept;
  SharedPages& operator=(SharedPages&& other) noexcept;
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  ~SharedPages();

  template <typename T>
  T* at(size_t offset = 0) const noexcept {
    return reinterpret_cast<T*>(bytes_.data() + offset);
  }
  std::span<std::byte> bytes() const noexcept { return bytes_; }
  // Owner: to be passed to peers. May be closed once no more peers will come.
  int fd() const noexcept { return fd_.get(); }
  void close_fd() noexcept { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

}  // namespace stagelink::memory
