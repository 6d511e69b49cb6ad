#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "connector/serializer/encode_plan.h"
#include "connector/serializer/payload_decoder.h"

namespace {

using namespace stagelink::serializer;

// What a frame holds goes straight into a plan of the other form.
class Rebuild final : public PayloadSink {
 public:
  explicit Rebuild(Wire wire) : builder(wire, true) {}

  bool nil() override { return builder.nil(), true; }
  bool boolean(bool value) override { return builder.boolean(value), true; }
  bool integer(int64_t value) override { return builder.integer(value), true; }
  bool unsigned_integer(uint64_t value) override { return builder.unsigned_integer(value), true; }
  bool real(double value) override { return builder.real(value), true; }
  bool time(int64_t seconds, uint32_t nanoseconds) override {
    return builder.time(seconds, nanoseconds), true;
  }
  bool text(std::string_view value) override { return builder.text(value).ok(); }
  bool bytes(std::span<const std::byte> value) override { return builder.bytes(value).ok(); }
  bool array(const ArrayView& value) override {
    const std::vector<int64_t> shape(value.shape.begin(), value.shape.end());
    PlanBuilder::ArrayPart part{value.kind, value.dtype, value.mode, shape,
                                ArraySource::dense(value.data)};
    if (part.kind == ArrayKind::kImage) part.dtype = {};  // That of its mode.
    return builder.array(part).ok();
  }
  bool begin_list(uint64_t count, ListKind kind) override { return builder.list(count, kind).ok(); }
  bool begin_map(uint64_t count) override { return builder.map(count, count).ok(); }
  bool end() override { return true; }

  PlanBuilder builder;
};

std::vector<std::byte> rebuilt(std::span<const std::byte> frame, Wire wire) {
  Rebuild rebuild(wire);
  if (!decode_payload(frame, rebuild).ok()) return {};
  auto plan = std::move(rebuild.builder).finish();
  if (!plan.ok()) std::abort();
  std::vector<std::byte> out((*plan).size());
  if (!(*plan).write(out).ok()) std::abort();
  return out;
}

}  // namespace

// Whatever is read can be written in the fast form, is read from it again, and gives the same
// bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto frame = std::as_bytes(std::span(data, size));
  const auto fast = rebuilt(frame, Wire::kFast);
  if (fast.empty()) return 0;
  if (!check_sum(fast).ok()) std::abort();
  const auto again = rebuilt(fast, Wire::kFast);
  if (again != fast) std::abort();
  return 0;
}
