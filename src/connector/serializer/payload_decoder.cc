#include "connector/serializer/payload_decoder.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "connector/serializer/array_form.h"
#include "connector/serializer/pack_reader.h"
#include "connector/serializer/payload_sum.h"

namespace stagelink::serializer {
namespace {

Status broken(std::string message) { return {Reason::kFrame, "payload: " + std::move(message)}; }

// The arrays and long byte strings behind a skeleton, which come in its order.
class Sections {
 public:
  Sections() = default;
  Sections(std::span<const std::byte> left, uint64_t at) : left_(left), at_(at) {}

  Status next(uint64_t bytes, std::span<const std::byte>& out) {
    const uint64_t padding = (kArrayAlign - at_ % kArrayAlign) % kArrayAlign;
    if (left_.size() < padding || left_.size() - padding < bytes) {
      return broken("an array behind its end");
    }
    out = left_.subspan(padding, bytes);
    left_ = left_.subspan(padding + bytes);
    at_ += padding + bytes;
    return {};
  }
  size_t left() const noexcept { return left_.size(); }

 private:
  std::span<const std::byte> left_;
  uint64_t at_ = 0;  // In the frame.
};

bool read_time(std::span<const std::byte> raw, int64_t& seconds, uint32_t& nanoseconds) noexcept {
  const auto number = [raw](size_t at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | std::to_integer<uint64_t>(raw[at + i]);
    return value;
  };
  uint64_t whole = 0;
  uint64_t part = 0;
  if (raw.size() == 4) {
    whole = number(0, 4);
  } else if (raw.size() == 8) {
    whole = number(0, 8) & ((uint64_t{1} << 34) - 1);
    part = number(0, 8) >> 34;
  } else if (raw.size() == 12) {
    part = number(0, 4);
    whole = number(4, 8);
  } else {
    return false;
  }
  if (part >= 1'000'000'000) return false;
  seconds = static_cast<int64_t>(whole);
  nanoseconds = static_cast<uint32_t>(part);
  return true;
}

// NumPy keeps texts as code points of 32 bits and believes each of them. The memory may lie
// anywhere.
Status check_texts(const ArrayView& view) {
  if (view.dtype.size() < 2 || view.dtype[1] != 'U') return {};
  constexpr uint32_t kLast = 0x10ffff;
  for (size_t at = 0; at + 4 <= view.data.size(); at += 4) {
    uint32_t point = 0;
    std::memcpy(&point, view.data.data() + at, sizeof point);
    if (view.dtype[0] == '>') point = __builtin_bswap32(point);
    if (point > kLast) return broken("an array of texts with what is no character");
  }
  return {};
}

class TokenWalk {
 public:
  TokenWalk(std::span<const std::byte> tokens, Wire wire, Sections sections, PayloadSink& sink)
      : reader_(tokens), wire_(wire), sections_(sections), sink_(sink), unclaimed_(tokens.size()) {
    open_.reserve(16);
  }

  Status run() {
    SL_TRY(value());
    while (!open_.empty()) {
      if (open_.back().left == 0) {
        open_.pop_back();
        SL_TRY(taken(sink_.end()));
      } else {
        --open_.back().left;
        SL_TRY(value());
      }
    }
    if (reader_.left() > 0) return broken(fmt::format("{} bytes follow its end", reader_.left()));
    if (sections_.left() > 0) {
      return broken(fmt::format("{} bytes follow its arrays", sections_.left()));
    }
    return {};
  }

 private:
  // What is open while its entries come.
  struct Open {
    uint64_t left;  // A map's keys and values, each counted.
    bool map;
    bool in_key;
  };

  static Status taken(bool by_sink) {
    return by_sink ? Status() : Status(Reason::kCancelled, "payload: its receiver refuses it");
  }
  static Status no_key() { return broken("a map has a key that cannot be one"); }

  // Whether what comes now is a map's key, or lies in one. `left` has been counted down already.
  bool in_key() const noexcept {
    return !open_.empty() &&
           (open_.back().in_key || (open_.back().map && open_.back().left % 2 == 1));
  }

  Status value() {
    Token token;
    if (!reader_.next(token)) return broken("it is cut off or no MessagePack");
    switch (token.kind) {
      case Token::Kind::kNil: return taken(sink_.nil());
      case Token::Kind::kBoolean: return taken(sink_.boolean(token.boolean));
      case Token::Kind::kInteger: return taken(sink_.integer(token.integer));
      case Token::Kind::kUnsigned: return taken(sink_.unsigned_integer(token.number));
      case Token::Kind::kReal: return taken(sink_.real(token.real));
      case Token::Kind::kText:
        return taken(
            sink_.text({reinterpret_cast<const char*>(token.bytes.data()), token.bytes.size()}));
      case Token::Kind::kBytes: return taken(sink_.bytes(token.bytes));
      case Token::Kind::kList: return list(token.number, ListKind::kList);
      case Token::Kind::kMap: return map(token.number);
      case Token::Kind::kExtension: return extension(token);
    }
    return broken("a token of no kind");
  }

  // Every entry takes a byte at least, whatever holds it: no count of a frame, nor all of them
  // together, can exceed its bytes.
  Status enter(uint64_t entries, bool is_map) {
    if (open_.size() >= kMaxDepth)
      return broken(fmt::format("it is nested deeper than {}", kMaxDepth));
    if (entries > reader_.left() || entries > unclaimed_) {
      return broken("it counts more entries than it has bytes");
    }
    unclaimed_ -= entries;
    open_.push_back({entries, is_map, in_key()});
    return {};
  }

  Status list(uint64_t count, ListKind kind) {
    if (in_key()) {
      if (kind == ListKind::kSet) return no_key();
      if (kind == ListKind::kList) kind = ListKind::kTuple;
    }
    SL_TRY(enter(count, false));
    return taken(sink_.begin_list(count, kind));
  }

  Status map(uint64_t count) {
    if (in_key()) return no_key();
    if (wire_ == Wire::kCompat && count == ArrayForm::kMapEntries) {
      ArrayForm form;
      if (form.read_map(reader_)) {
        SL_ASSIGN(const uint64_t bytes, form.bytes());
        if (bytes != form.data().size()) {
          return broken(
              fmt::format("an array of {} bytes, its shape says {}", form.data().size(), bytes));
        }
        return give(form.view(form.data()));
      }
    }
    SL_TRY(enter(count * 2, true));
    return taken(sink_.begin_map(count));
  }

  Status give(const ArrayView& view) {
    SL_TRY(check_texts(view));
    return taken(sink_.array(view));
  }

  Status extension(const Token& token) {
    if (token.extension == kExtTime) {
      int64_t seconds = 0;
      uint32_t nanoseconds = 0;
      if (!read_time(token.bytes, seconds, nanoseconds)) return broken("a time that is none");
      return taken(sink_.time(seconds, nanoseconds));
    }
    if (wire_ == Wire::kFast) {
      if (token.extension == kExtArray) return array_behind(token.bytes);
      if (token.extension == kExtBytes) return bytes_behind(token.bytes);
      if (token.extension == kExtListKind) return list_of_kind(token.bytes);
    }
    return broken(fmt::format("an extension of type {}", token.extension));
  }

  Status list_of_kind(std::span<const std::byte> raw) {
    if (raw.size() != 1 || raw[0] >= static_cast<std::byte>(ListKind::kList)) {
      return broken("a list of no kind");
    }
    Token token;
    if (!reader_.next(token) || token.kind != Token::Kind::kList) {
      return broken("the kind of a list, and no list");
    }
    return list(token.number, static_cast<ListKind>(raw[0]));
  }

  Status bytes_behind(std::span<const std::byte> raw) {
    uint64_t size = 0;
    if (raw.size() != sizeof size) return broken("a byte string without its length");
    std::memcpy(&size, raw.data(), sizeof size);
    std::span<const std::byte> data;
    SL_TRY(sections_.next(size, data));
    return taken(sink_.bytes(data));
  }

  Status array_behind(std::span<const std::byte> raw) {
    if (in_key()) return no_key();
    ArrayForm form;
    if (!form.read_note(raw)) return broken("an array without its shape");
    SL_ASSIGN(const uint64_t bytes, form.bytes());
    std::span<const std::byte> data;
    SL_TRY(sections_.next(bytes, data));
    return give(form.view(data));
  }

  PackReader reader_;
  Wire wire_;
  Sections sections_;
  PayloadSink& sink_;
  uint64_t unclaimed_;  // Bytes of the frame that no entry has been counted for.
  std::vector<Open> open_;
};

Status decode_fast(std::span<const std::byte> frame, PayloadSink& sink) {
  if (frame.size() < 2) return broken("it is cut off");
  const auto version = std::to_integer<unsigned>(frame[1]);
  if (version != kFastVersion) {
    return {Reason::kVersion, fmt::format("payload: the fast form has version {}, this reads {}",
                                          version, kFastVersion)};
  }
  if (frame.size() < kPrefixBytes) return broken("it is cut off");
  const auto flags = std::to_integer<unsigned>(frame[2]);
  uint32_t skeleton = 0;
  uint64_t size = 0;
  std::memcpy(&skeleton, frame.data() + 4, sizeof skeleton);
  std::memcpy(&size, frame.data() + 8, sizeof size);
  if (flags > kFlagSum || frame[3] != std::byte{0}) return broken("flags of no meaning");
  if (size != frame.size()) {
    return broken(fmt::format("{} bytes, it says {}", frame.size(), size));
  }
  if (skeleton > frame.size() - kPrefixBytes) return broken("a skeleton longer than the frame");
  const uint64_t begin = kPrefixBytes + skeleton;
  return TokenWalk(frame.subspan(kPrefixBytes, skeleton), Wire::kFast,
                   Sections(frame.subspan(begin), begin), sink)
      .run();
}

}  // namespace

Status decode_payload(std::span<const std::byte> frame, PayloadSink& sink) {
  if (frame.empty()) return broken("it is empty");
  if (frame[0] == std::byte{kFastByte}) return decode_fast(frame, sink);
  return TokenWalk(frame, Wire::kCompat, Sections(), sink).run();
}

Status check_sum(std::span<const std::byte> frame) {
  if (frame.size() < kPrefixBytes || frame[0] != std::byte{kFastByte} ||
      frame[1] != std::byte{kFastVersion} || (frame[2] & std::byte{kFlagSum}) == std::byte{0}) {
    return {};
  }
  uint64_t sum = 0;
  std::memcpy(&sum, frame.data() + kSumAt, sizeof sum);
  if (sum == sum_of_frame({&frame, 1})) return {};
  return {Reason::kChecksum, "payload: its bytes are not those whose sum it carries"};
}

}  // namespace stagelink::serializer
