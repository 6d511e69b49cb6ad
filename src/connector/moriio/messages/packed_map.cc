#include "connector/moriio/messages/packed_map.h"

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <msgpack.hpp>

#include "base/text.h"

namespace stagelink::moriio {
namespace {

constexpr size_t kMaxDepth = 4;
constexpr size_t kMaxKeyBytes = 1024;
constexpr uint64_t kMaxObjects = 2 << 20;  // Of one frame; each takes 24 bytes when it is built.

// Walks the frame without building anything: depth, the number of objects, and no container that
// claims more entries than bytes follow. What it lets through is complete.
class Probe : public msgpack::null_visitor {
 public:
  explicit Probe(size_t frame_bytes) : frame_bytes_(frame_bytes) {}
  bool start_array(uint32_t count) { return enter(count); }
  bool end_array() { return leave(); }
  bool start_map(uint32_t count) { return enter(uint64_t{count} * 2); }
  bool end_map() { return leave(); }
  const char* why() const noexcept { return why_; }

 private:
  bool enter(uint64_t entries) {
    if (++depth_ > kMaxDepth) return refuse("it is nested too deeply");
    if (entries > frame_bytes_) return refuse("a list is longer than the frame");
    objects_ += entries;
    return objects_ <= kMaxObjects || refuse("it has too many entries");
  }
  bool refuse(const char* why) {
    why_ = why;
    return false;
  }
  bool leave() {
    --depth_;
    return true;
  }

  size_t frame_bytes_;
  size_t depth_ = 0;
  uint64_t objects_ = 0;
  const char* why_ = "it is cut off or no MessagePack";
};

bool keep_in_frame(msgpack::type::object_type, std::size_t, void*) { return true; }

std::string_view text_of(const msgpack::object& object) {
  return {object.via.str.ptr, object.via.str.size};
}

struct Packed {
  Bytes bytes;
  void write(const char* data, size_t size) {
    const auto raw = std::as_bytes(std::span(data, size));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  }
};

void pack_text(msgpack::packer<Packed>& packer, std::string_view text) {
  packer.pack_str(static_cast<uint32_t>(text.size()));
  packer.pack_str_body(text.data(), static_cast<uint32_t>(text.size()));
}

void pack_bytes(msgpack::packer<Packed>& packer, std::span<const std::byte> bytes) {
  packer.pack_bin(static_cast<uint32_t>(bytes.size()));
  packer.pack_bin_body(reinterpret_cast<const char*>(bytes.data()),
                       static_cast<uint32_t>(bytes.size()));
}

void pack_count(msgpack::packer<Packed>& packer, size_t count) {
  packer.pack_array(static_cast<uint32_t>(count));
}

}  // namespace

struct MapReader::Impl {
  msgpack::zone zone;
  msgpack::object root;
  std::vector<std::pair<std::string_view, const msgpack::object*>> sorted;  // By key.

  const msgpack::object* find(std::string_view key) const {
    const auto found = std::lower_bound(
        sorted.begin(), sorted.end(), key,
        [](const auto& entry, std::string_view wanted) { return entry.first < wanted; });
    return found == sorted.end() || found->first != key ? nullptr : found->second;
  }

  // Finds the key and reads its value with `read(object, out, why)`; a failure is the reader's.
  template <typename T, typename Read>
  T read(MapReader& reader, std::string_view key, Read read_value) const {
    T out{};
    if (!reader.ok()) return out;
    std::string why;
    const msgpack::object* const object = find(key);
    if (object == nullptr) {
      reader.reject(key, "is missing");
    } else if (!read_value(*object, out, why)) {
      reader.reject(key, why);
    }
    return reader.ok() ? std::move(out) : T{};
  }

  // Empty, or what is wrong with the keys.
  std::string index() {
    const auto& map = root.via.map;
    sorted.reserve(map.size);
    for (uint32_t i = 0; i < map.size; ++i) {
      const auto& key = map.ptr[i].key;
      if (key.type != msgpack::type::STR) return "a key is no text";
      if (key.via.str.size > kMaxKeyBytes) return "a key is too long";
      sorted.emplace_back(text_of(key), &map.ptr[i].val);
    }
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto twice =
        std::adjacent_find(sorted.begin(), sorted.end(),
                           [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice == sorted.end()) return {};
    return fmt::format("key `{}` stands in it twice", to_plain_text(twice->first, 80));
  }
};

MapReader::MapReader(const char* what, std::unique_ptr<Impl> impl)
    : what_(what), impl_(std::move(impl)) {}
MapReader::~MapReader() = default;
MapReader::MapReader(MapReader&&) noexcept = default;

Result<MapReader> MapReader::open(const char* what, std::span<const std::byte> frame,
                                  const Limits& limits) {
  const auto refuse = [what](std::string_view why) {
    return Status(Reason::kFrame, fmt::format("{}: {}", what, why));
  };
  if (frame.size() > limits.frame_bytes) {
    return Status(Reason::kTooLarge, fmt::format("{}: a frame of {} bytes, the limit is {}", what,
                                                 frame.size(), limits.frame_bytes));
  }
  try {
    const char* data = reinterpret_cast<const char*>(frame.data());
    if (frame.empty()) return refuse("the frame is empty");
    Probe probe(frame.size());
    size_t end = 0;
    if (!msgpack::parse(data, frame.size(), end, probe)) return refuse(probe.why());
    if (end != frame.size()) {
      return refuse(fmt::format("{} bytes follow its end", frame.size() - end));
    }
    const size_t most = frame.size();
    const msgpack::unpack_limit limit(most, most, most, most, most, kMaxDepth + 1);
    auto impl = std::make_unique<Impl>();
    bool referenced = false;
    end = 0;
    impl->root =
        msgpack::unpack(impl->zone, data, most, end, referenced, keep_in_frame, nullptr, limit);
    if (impl->root.type != msgpack::type::MAP) return refuse("it is no map");
    if (impl->root.via.map.size > limits.entries) {
      return refuse(
          fmt::format("it has {} keys, the limit is {}", impl->root.via.map.size, limits.entries));
    }
    if (const std::string why = impl->index(); !why.empty()) return refuse(why);
    return MapReader(what, std::move(impl));
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}

bool MapReader::has(std::string_view key) const { return impl_->find(key) != nullptr; }

std::vector<std::string> MapReader::keys() const {
  std::vector<std::string> out;
  const auto& map = impl_->root.via.map;
  out.reserve(map.size);
  for (uint32_t i = 0; i < map.size; ++i) out.emplace_back(text_of(map.ptr[i].key));
  return out;
}

void MapReader::reject(std::string_view key, std::string_view why) {
  if (!status_.ok()) return;
  status_ =
      Status(Reason::kFrame, fmt::format("{}: key `{}` {}", what_, to_plain_text(key, 80), why));
}

namespace {

// The readers of values: false, and `why` says what is wrong.
bool read_text(const msgpack::object& object, size_t max_bytes, std::string& out,
               std::string& why) {
  if (object.type != msgpack::type::STR) {
    why = "is no text";
  } else if (object.via.str.size == 0) {
    why = "is empty";
  } else if (object.via.str.size > max_bytes) {
    why = fmt::format("is a text of {} bytes, the limit is {}", object.via.str.size, max_bytes);
  } else if (!is_plain_text(text_of(object))) {
    why = "is no plain text";
  } else {
    out = text_of(object);
    return true;
  }
  return false;
}

bool read_bytes(const msgpack::object& object, size_t max_bytes, Bytes& out, std::string& why) {
  if (object.type != msgpack::type::BIN) {
    why = "is no byte string";
    return false;
  }
  if (object.via.bin.size > max_bytes) {
    why = fmt::format("has {} bytes, the limit is {}", object.via.bin.size, max_bytes);
    return false;
  }
  const auto raw = std::as_bytes(std::span(object.via.bin.ptr, object.via.bin.size));
  out.assign(raw.begin(), raw.end());
  return true;
}

bool read_integer(const msgpack::object& object, const IntegerRange& range, uint64_t& out,
                  std::string& why) {
  if (object.type == msgpack::type::NEGATIVE_INTEGER) {
    why = fmt::format("is {}, not within {} to {}", object.via.i64, range.min, range.max);
    return false;
  }
  if (object.type != msgpack::type::POSITIVE_INTEGER) {
    why = "is no integer";
    return false;
  }
  if (object.via.u64 < range.min || object.via.u64 > range.max) {
    why = fmt::format("is {}, not within {} to {}", object.via.u64, range.min, range.max);
    return false;
  }
  out = object.via.u64;
  return true;
}

template <typename T>
bool read_integers(const msgpack::object& object, size_t max_count, const IntegerRange& range,
                   std::vector<T>& out, std::string& why) {
  if (object.type != msgpack::type::ARRAY) {
    why = "is no list";
    return false;
  }
  if (object.via.array.size > max_count) {
    why = fmt::format("has {} entries, the limit is {}", object.via.array.size, max_count);
    return false;
  }
  out.resize(object.via.array.size);
  for (uint32_t i = 0; i < object.via.array.size; ++i) {
    uint64_t value = 0;
    if (!read_integer(object.via.array.ptr[i], range, value, why)) {
      why = fmt::format("entry {} {}", i, why);
      return false;
    }
    out[i] = static_cast<T>(value);
  }
  return true;
}

bool check_map(const msgpack::object& object, size_t max_count, std::string& why) {
  if (object.type != msgpack::type::MAP) {
    why = "is no map";
  } else if (object.via.map.size > max_count) {
    why = fmt::format("has {} entries, the limit is {}", object.via.map.size, max_count);
  } else {
    return true;
  }
  return false;
}

constexpr IntegerRange kAnyInteger = {0, std::numeric_limits<uint64_t>::max()};

}  // namespace

std::string MapReader::text(std::string_view key, size_t max_bytes) {
  return impl_->read<std::string>(*this, key,
                                  [max_bytes](const auto& object, auto& out, auto& why) {
                                    return read_text(object, max_bytes, out, why);
                                  });
}

Bytes MapReader::bytes(std::string_view key, size_t max_bytes) {
  return impl_->read<Bytes>(*this, key, [max_bytes](const auto& object, auto& out, auto& why) {
    return read_bytes(object, max_bytes, out, why);
  });
}

bool MapReader::flag(std::string_view key) {
  return impl_->read<bool>(*this, key, [](const auto& object, auto& out, auto& why) {
    why = "is neither true nor false";
    out = object.type == msgpack::type::BOOLEAN && object.via.boolean;
    return object.type == msgpack::type::BOOLEAN;
  });
}

uint64_t MapReader::integer(std::string_view key, const IntegerRange& range) {
  return impl_->read<uint64_t>(*this, key, [&range](const auto& object, auto& out, auto& why) {
    return read_integer(object, range, out, why);
  });
}

uint64_t MapReader::integer_or_digits(std::string_view key, const IntegerRange& range) {
  return impl_->read<uint64_t>(*this, key, [&range](const auto& object, auto& out, auto& why) {
    if (object.type != msgpack::type::STR) return read_integer(object, range, out, why);
    const auto number = parse_integer(text_of(object));
    if (!number.ok() || *number < 0 || static_cast<uint64_t>(*number) < range.min ||
        static_cast<uint64_t>(*number) > range.max) {
      why = fmt::format("is `{}`, no integer within {} to {}", to_plain_text(text_of(object), 40),
                        range.min, range.max);
      return false;
    }
    out = static_cast<uint64_t>(*number);
    return true;
  });
}

std::vector<int64_t> MapReader::integers(std::string_view key, size_t max_count,
                                         const IntegerRange& range) {
  return impl_->read<std::vector<int64_t>>(
      *this, key, [max_count, &range](const auto& object, auto& out, auto& why) {
        return read_integers(object, max_count, range, out, why);
      });
}

std::vector<uint64_t> MapReader::addresses(std::string_view key, size_t max_count) {
  return impl_->read<std::vector<uint64_t>>(
      *this, key, [max_count](const auto& object, auto& out, auto& why) {
        return read_integers(object, max_count, kAnyInteger, out, why);
      });
}

std::vector<Bytes> MapReader::byte_lists(std::string_view key, size_t max_count, size_t max_bytes) {
  return impl_->read<std::vector<Bytes>>(
      *this, key, [max_count, max_bytes](const auto& object, auto& out, auto& why) {
        if (object.type != msgpack::type::ARRAY || object.via.array.size > max_count) {
          why = fmt::format("is no list of at most {} byte strings", max_count);
          return false;
        }
        out.resize(object.via.array.size);
        for (size_t i = 0; i < out.size(); ++i) {
          if (read_bytes(object.via.array.ptr[i], max_bytes, out[i], why)) continue;
          why = fmt::format("entry {} {}", i, why);
          return false;
        }
        return true;
      });
}

std::vector<std::vector<int64_t>> MapReader::integer_lists(std::string_view key, size_t max_lists,
                                                           size_t max_count,
                                                           const IntegerRange& range) {
  return impl_->read<std::vector<std::vector<int64_t>>>(
      *this, key, [&](const auto& object, auto& out, auto& why) {
        if (object.type != msgpack::type::ARRAY || object.via.array.size > max_lists) {
          why = fmt::format("is no list of at most {} lists", max_lists);
          return false;
        }
        out.resize(object.via.array.size);
        size_t left = max_count;
        for (size_t i = 0; i < out.size(); ++i) {
          if (!read_integers(object.via.array.ptr[i], left, range, out[i], why)) {
            why = fmt::format("list {} {}", i, why);
            return false;
          }
          left -= out[i].size();
        }
        return true;
      });
}

std::map<std::string, std::string> MapReader::texts_by_name(std::string_view key, size_t max_count,
                                                            size_t max_bytes) {
  return impl_->read<std::map<std::string, std::string>>(
      *this, key, [&](const auto& object, auto& out, auto& why) {
        if (!check_map(object, max_count, why)) return false;
        for (uint32_t i = 0; i < object.via.map.size; ++i) {
          const auto& entry = object.via.map.ptr[i];
          std::string name;
          std::string text;
          if (!read_text(entry.key, max_bytes, name, why) ||
              !read_text(entry.val, max_bytes, text, why)) {
            why = fmt::format("entry {} {}", i, why);
            return false;
          }
          out.insert_or_assign(std::move(name), std::move(text));
        }
        return true;
      });
}

std::map<std::string, uint64_t> MapReader::integers_by_name(std::string_view key,
                                                            size_t max_count) {
  return impl_->read<std::map<std::string, uint64_t>>(
      *this, key, [max_count](const auto& object, auto& out, auto& why) {
        if (!check_map(object, max_count, why)) return false;
        for (uint32_t i = 0; i < object.via.map.size; ++i) {
          const auto& entry = object.via.map.ptr[i];
          std::string name;
          uint64_t value = 0;
          if (!read_text(entry.key, kMaxKeyBytes, name, why) ||
              !read_integer(entry.val, kAnyInteger, value, why)) {
            why = fmt::format("entry {} {}", i, why);
            return false;
          }
          out.insert_or_assign(std::move(name), value);
        }
        return true;
      });
}

// The entries are packed behind a head whose size is known when all of them are there.
struct MapWriter::Impl {
  Packed body;
  msgpack::packer<Packed> packer{body};
  uint32_t entries = 0;

  msgpack::packer<Packed>& entry(std::string_view key) {
    ++entries;
    pack_text(packer, key);
    return packer;
  }
};

MapWriter::MapWriter() : impl_(std::make_unique<Impl>()) {}
MapWriter::~MapWriter() = default;

void MapWriter::text(std::string_view key, std::string_view value) {
  pack_text(impl_->entry(key), value);
}

void MapWriter::bytes(std::string_view key, std::span<const std::byte> value) {
  pack_bytes(impl_->entry(key), value);
}

void MapWriter::integer(std::string_view key, uint64_t value) {
  impl_->entry(key).pack_uint64(value);
}

void MapWriter::integers(std::string_view key, std::span<const int64_t> values) {
  auto& packer = impl_->entry(key);
  pack_count(packer, values.size());
  for (const int64_t value : values) packer.pack_int64(value);
}

void MapWriter::addresses(std::string_view key, std::span<const uint64_t> values) {
  auto& packer = impl_->entry(key);
  pack_count(packer, values.size());
  for (const uint64_t value : values) packer.pack_uint64(value);
}

void MapWriter::byte_lists(std::string_view key, std::span<const Bytes> values) {
  auto& packer = impl_->entry(key);
  pack_count(packer, values.size());
  for (const Bytes& value : values) pack_bytes(packer, value);
}

void MapWriter::integer_lists(std::string_view key, std::span<const std::vector<int64_t>> values) {
  auto& packer = impl_->entry(key);
  pack_count(packer, values.size());
  for (const auto& list : values) {
    pack_count(packer, list.size());
    for (const int64_t value : list) packer.pack_int64(value);
  }
}

void MapWriter::texts_by_name(std::string_view key,
                              const std::map<std::string, std::string>& values) {
  auto& packer = impl_->entry(key);
  packer.pack_map(static_cast<uint32_t>(values.size()));
  for (const auto& [name, text] : values) {
    pack_text(packer, name);
    pack_text(packer, text);
  }
}

void MapWriter::integers_by_name(std::string_view key,
                                 const std::map<std::string, uint64_t>& values) {
  auto& packer = impl_->entry(key);
  packer.pack_map(static_cast<uint32_t>(values.size()));
  for (const auto& [name, value] : values) {
    pack_text(packer, name);
    packer.pack_uint64(value);
  }
}

Bytes MapWriter::take() {
  Packed out;
  msgpack::packer<Packed> packer(out);
  packer.pack_map(impl_->entries);
  out.bytes.insert(out.bytes.end(), impl_->body.bytes.begin(), impl_->body.bytes.end());
  impl_ = std::make_unique<Impl>();
  return std::move(out.bytes);
}

}  // namespace stagelink::moriio
