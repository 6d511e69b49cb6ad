#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "connector/serializer/payload_decoder.h"

namespace stagelink::serializer {

inline std::string hex_of(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte byte : bytes) out += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return out;
}

inline std::vector<std::byte> from_hex(std::string_view hex) {
  std::vector<std::byte> out;
  std::string digits;
  for (const char c : hex) {
    if (c != ' ') digits += c;
  }
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::stoul(digits.substr(i, 2), nullptr, 16)));
  }
  return out;
}

// Writes down what it is given: {"a" 1 [true (nil)] tensor int16 [2] 0100}.
class TextSink final : public PayloadSink {
 public:
  bool nil() override { return add("nil"); }
  bool boolean(bool value) override { return add(value ? "true" : "false"); }
  bool integer(int64_t value) override { return add(fmt::format("{}", value)); }
  bool unsigned_integer(uint64_t value) override { return add(fmt::format("{}u", value)); }
  bool real(double value) override { return add(fmt::format("{}", value)); }
  bool time(int64_t seconds, uint32_t nanoseconds) override {
    return add(fmt::format("time {} {}", seconds, nanoseconds));
  }
  bool text(std::string_view value) override {
    return add(value.size() > 40 ? fmt::format("text of {}", value.size())
                                 : fmt::format("\"{}\"", value));
  }
  bool bytes(std::span<const std::byte> value) override {
    return add(value.size() > 40 ? fmt::format("bytes of {}", value.size())
                                 : fmt::format("bytes {}", hex_of(value)));
  }
  bool array(const ArrayView& value) override {
    constexpr const char* kNames[] = {"tensor", "array", "image"};
    last_array = value.data;
    const std::string data =
        value.data.size() > 40 ? fmt::format("of {}", value.data.size()) : hex_of(value.data);
    return add(fmt::format("{} {}{} [{}] {}", kNames[static_cast<size_t>(value.kind)], value.dtype,
                           value.mode, fmt::join(value.shape, ","), data));
  }
  bool begin_list(uint64_t, ListKind kind) override {
    constexpr const char* kOpen[] = {"(", "<", "<<", "["};
    constexpr const char* kClose[] = {")", ">", ">>", "]"};
    open(kOpen[static_cast<size_t>(kind)]);
    closing_.push_back(kClose[static_cast<size_t>(kind)]);
    return true;
  }
  bool begin_map(uint64_t) override {
    open("{");
    closing_.push_back("}");
    return true;
  }
  bool end() override {
    out += closing_.back();
    closing_.pop_back();
    return true;
  }

  std::string out;
  std::span<const std::byte> last_array;
  std::string stop_at;  // Refuses the first part that is written like this.

 private:
  void open(const char* bracket) {
    if (!out.empty() && std::string_view("([{<").find(out.back()) == std::string_view::npos) {
      out += ' ';
    }
    out += bracket;
  }
  bool add(const std::string& part) {
    open(part.c_str());
    return stop_at.empty() || part != stop_at;
  }

  std::vector<const char*> closing_;
};

// The value as text, or the failure.
inline std::string read(std::span<const std::byte> frame) {
  TextSink sink;
  if (Status status = check_sum(frame); !status.ok()) return status.to_string();
  const Status status = decode_payload(frame, sink);
  return status.ok() ? sink.out : status.to_string();
}

}  // namespace stagelink::serializer
