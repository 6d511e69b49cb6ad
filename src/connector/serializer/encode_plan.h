#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "connector/serializer/array_source.h"
#include "connector/serializer/pack_writer.h"
#include "connector/serializer/payload.h"
#include "stagelink/result.h"

namespace stagelink::serializer {

// A payload that is ready to be written: its small parts, and where its large ones are. Its size is
// known before anything large is touched; writing copies every byte of these once.
//
// Thread-safety: immutable. Its sources must stay where they are as long as it is written.
class EncodePlan {
 public:
  uint64_t size() const noexcept { return size_; }
  // Errors: invalid_argument (out_of_bounds) if `out` is not of exactly that size.
  Status write(std::span<std::byte> out) const;
  Status write(std::span<const std::span<std::byte>> pieces) const;

 private:
  friend class PlanBuilder;
  struct Insert {
    size_t at;  // In head_.
    ArraySource source;
  };

  static void write_sum(std::span<const std::span<std::byte>> pieces);

  Wire wire_ = Wire::kCompat;
  bool sum_ = false;
  uint64_t size_ = 0;
  std::vector<std::byte> head_;
  std::vector<Insert> inserts_;        // Between parts of the head, in order.
  std::vector<ArraySource> sections_;  // Behind it, aligned (fast only).
};

// Takes the parts of one value in order: what holds others says how many follow. The bytes of
// arrays and of long texts and byte strings stay where they are until the plan is written.
//
// Thread-safety: none; used by one thread.
class PlanBuilder {
 public:
  struct ArrayPart {
    ArrayKind kind = ArrayKind::kTensor;
    std::string_view dtype;
    std::string_view mode;  // Pictures only.
    std::span<const int64_t> shape;
    ArraySource source;
  };

  explicit PlanBuilder(Wire wire, bool sum = false);

  void nil() { head_.nil(); }
  void boolean(bool value) { head_.boolean(value); }
  void integer(int64_t value) { head_.integer(value); }
  void unsigned_integer(uint64_t value) { head_.unsigned_integer(value); }
  void real(double value) { head_.real(value); }
  void time(int64_t seconds, uint32_t nanoseconds);
  // Errors of the parts with bytes: limit (too_large), for what MessagePack has no length for.
  Status text(std::string_view value);
  Status bytes(std::span<const std::byte> value);
  Status array(const ArrayPart& part);
  Status list(uint64_t count, ListKind kind);
  // `widest`: the entries that the map might have had; its count is written as wide as these take.
  Status map(uint64_t count, uint64_t widest);

  // Errors: limit (too_large).
  Result<EncodePlan> finish() &&;

 private:
  void insert(std::span<const std::byte> value);
  Status array_in_map(const ArrayPart& part);
  void array_in_section(const ArrayPart& part);

  EncodePlan plan_;
  PackWriter head_;
};

}  // namespace stagelink::serializer
