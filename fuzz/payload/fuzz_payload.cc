#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>

#include "connector/serializer/dtype.h"
#include "connector/serializer/payload_decoder.h"

namespace {

using stagelink::serializer::ArrayKind;
using stagelink::serializer::ArrayView;
using stagelink::serializer::ListKind;

// Reads every byte that it is given, and checks that counts and ends agree.
class Reader final : public stagelink::serializer::PayloadSink {
 public:
  explicit Reader(size_t frame_bytes) : frame_bytes_(frame_bytes) {}
  ~Reader() override = default;

  bool nil() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool integer(int64_t) override { return value(); }
  bool unsigned_integer(uint64_t number) override {
    if (number <= INT64_MAX) std::abort();
    return value();
  }
  bool real(double) override { return value(); }
  bool time(int64_t, uint32_t nanoseconds) override {
    if (nanoseconds >= 1'000'000'000) std::abort();
    return value();
  }
  bool text(std::string_view text) override {
    touch(std::as_bytes(std::span(text.data(), text.size())));
    return value();
  }
  bool bytes(std::span<const std::byte> bytes) override {
    touch(bytes);
    return value();
  }
  bool array(const ArrayView& view) override {
    touch(view.data);
    const auto item = stagelink::serializer::array_item_bytes(view.dtype);
    if (!item.has_value()) std::abort();
    uint64_t bytes = *item;
    for (const uint64_t extent : view.shape) {
      if (extent == 0) bytes = 0;
    }
    if (bytes != 0) {
      for (const uint64_t extent : view.shape) bytes *= extent;
    }
    if (bytes != view.data.size() || view.shape.size() > stagelink::serializer::kMaxRank)
      std::abort();
    return value();
  }
  bool begin_list(uint64_t count, ListKind) override { return begin(count); }
  bool begin_map(uint64_t count) override { return begin(count * 2); }
  bool end() override {
    if (depth_ == 0 || left_[depth_ - 1] != 0) std::abort();
    --depth_;
    return true;
  }
  bool done() const { return depth_ == 0 && values_ > 0; }

 private:
  bool value() {
    ++values_;
    if (depth_ > 0 && left_[depth_ - 1]-- == 0) std::abort();
    return true;
  }
  bool begin(uint64_t entries) {
    value();
    claimed_ += entries;
    if (claimed_ > frame_bytes_ || depth_ == stagelink::serializer::kMaxDepth) std::abort();
    left_[depth_++] = entries;
    return true;
  }
  void touch(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) seen_ = static_cast<uint8_t>(seen_ + uint8_t(byte));
  }

  size_t frame_bytes_;
  uint64_t claimed_ = 0;
  uint64_t values_ = 0;
  size_t depth_ = 0;
  uint64_t left_[stagelink::serializer::kMaxDepth] = {};
  volatile uint8_t seen_ = 0;
};

}  // namespace

// A payload of either form: what is accepted is complete, within the frame, and within the bounds.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto frame = std::as_bytes(std::span(data, size));
  if (!stagelink::serializer::check_sum(frame).ok()) return 0;
  Reader reader(size);
  const auto status = stagelink::serializer::decode_payload(frame, reader);
  if (status.ok() && !reader.done()) std::abort();
  if (!status.ok() && status.code() != stagelink::Code::kCorrupt &&
      status.code() != stagelink::Code::kIncompatible) {
    std::abort();
  }
  return 0;
}
