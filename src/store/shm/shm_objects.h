#pragma once

#include <array>
#include <memory>
#include <span>

#include "store/backend.h"
#include "store/shm/arena.h"

namespace stagelink::store::shm {

// What an arena's store shares with its views and writers, which may outlive it.
struct StoreLife {
  explicit StoreLife(std::shared_ptr<Arena> arena_) noexcept : arena(std::move(arena_)) {}
  const std::shared_ptr<Arena> arena;
  std::atomic<bool> closed{false};
};

uint64_t now_ns() noexcept;  // CLOCK_MONOTONIC.
// The time of expiry as a slot has it; 0: never.
uint64_t expiry_after(uint64_t now, Duration ttl) noexcept;

class ShmWriter final : public WriterState {
 public:
  // A slot that is being written by this store's member.
  ShmWriter(std::shared_ptr<StoreLife> life, uint32_t slot, Duration ttl) noexcept;
  ~ShmWriter() override;

  std::span<const std::span<std::byte>> pieces() const noexcept override { return pieces_; }
  uint64_t size() const noexcept override { return pieces_[0].size(); }
  Status seal() override;
  void abort() noexcept override;
  uint64_t generation() const noexcept override { return generation_; }

 private:
  const std::shared_ptr<StoreLife> life_;
  const uint32_t slot_;
  const Tag tag_;
  const Duration ttl_;
  std::array<std::span<std::byte>, 1> pieces_;
  uint64_t generation_ = 0;
  bool open_ = true;
};

class ShmView final : public ViewState {
 public:
  // A view that has begun: see Arena::begin_view.
  ShmView(std::shared_ptr<StoreLife> life, uint32_t slot, Tag tag) noexcept;
  ~ShmView() override;

  std::span<const std::byte> bytes() const noexcept override { return bytes_; }
  uint64_t generation() const noexcept override { return tag_.generation(); }
  Status valid() const override;

 private:
  const std::shared_ptr<StoreLife> life_;
  const uint32_t slot_;
  const Tag tag_;
  const std::span<const std::byte> bytes_;
};

}  // namespace stagelink::store::shm
