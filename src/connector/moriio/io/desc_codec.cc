#include "connector/moriio/io/desc_codec.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>
#include <msgpack.hpp>

#include "base/text.h"

namespace stagelink::moriio {
namespace {

constexpr size_t kMaxNestedItems = 64;
constexpr size_t kMaxDepth = 4;

const char* chars(std::span<const std::byte> bytes) noexcept {
  return reinterpret_cast<const char*>(bytes.data());
}

}  // namespace

struct DescWriter::Buffer {
  msgpack::sbuffer bytes;
  msgpack::packer<msgpack::sbuffer> packer{bytes};
};

DescWriter::DescWriter(uint32_t fields) : buffer_(std::make_unique<Buffer>()) {
  buffer_->packer.pack_array(fields);
}
DescWriter::~DescWriter() = default;

void DescWriter::put_text(std::string_view text) {
  buffer_->packer.pack_str(static_cast<uint32_t>(text.size()));
  buffer_->packer.pack_str_body(text.data(), static_cast<uint32_t>(text.size()));
}

void DescWriter::put_unsigned(uint64_t value) { buffer_->packer.pack_uint64(value); }
void DescWriter::put_signed(int64_t value) { buffer_->packer.pack_int64(value); }

void DescWriter::put_handle(const Handle& handle) {
  buffer_->packer.pack_bin(kHandleBytes);
  buffer_->packer.pack_bin_body(chars(handle), kHandleBytes);
}

std::vector<std::byte> DescWriter::take() const {
  const auto bytes = std::as_bytes(std::span(buffer_->bytes.data(), buffer_->bytes.size()));
  return {bytes.begin(), bytes.end()};
}

struct DescReader::Items {
  msgpack::object_handle root;
  const msgpack::object* at(uint32_t index) const noexcept {
    const msgpack::object_array& array = root->via.array;
    return index < array.size ? &array.ptr[index] : nullptr;
  }
};

DescReader::DescReader(const char* what, std::unique_ptr<Items> items) noexcept
    : what_(what), items_(std::move(items)) {}
DescReader::DescReader(DescReader&&) noexcept = default;
DescReader::~DescReader() = default;

Result<DescReader> DescReader::open(std::span<const std::byte> blob, const char* what) {
  const auto refuse = [what](std::string_view why) {
    return Status(Reason::kFrame, fmt::format("{}: {}", what, why));
  };
  if (blob.size() > kMaxBytes) {
    return refuse(fmt::format("{} bytes are more than {}", blob.size(), kMaxBytes));
  }
  auto items = std::make_unique<Items>();
  size_t end = 0;
  try {
    const msgpack::unpack_limit limit(kMaxFields, kMaxNestedItems, kMaxBytes, kMaxBytes, kMaxBytes,
                                      kMaxDepth);
    msgpack::unpack(items->root, chars(blob), blob.size(), end, nullptr, nullptr, limit);
  } catch (const std::exception& error) {
    return refuse(fmt::format("not one msgpack array: {}", error.what()));
  }
  if (end != blob.size()) return refuse(fmt::format("{} bytes left over", blob.size() - end));
  if (items->root->type != msgpack::type::ARRAY) return refuse("not a msgpack array");
  return DescReader(what, std::move(items));
}

void DescReader::reject(const char* field, std::string_view why) {
  if (!status_.ok()) return;
  status_ = Status(Reason::kFrame, fmt::format("{}: field {} {}", what_, field, why));
}

void DescReader::take_text(const char* field, std::string& value) {
  const msgpack::object* item = items_->at(next_++);
  if (item == nullptr) return;
  if (item->type != msgpack::type::STR) return reject(field, "is not text");
  const std::string_view text(item->via.str.ptr, item->via.str.size);
  if (text.size() > kMaxTextBytes) return reject(field, "is too long");
  if (!is_plain_text(text)) return reject(field, "is not plain text");
  value = text;
}

void DescReader::take_unsigned(const char* field, uint64_t max, uint64_t& value) {
  const msgpack::object* item = items_->at(next_++);
  if (item == nullptr) return;
  if (item->type != msgpack::type::POSITIVE_INTEGER) return reject(field, "is not a number");
  if (item->via.u64 > max) return reject(field, fmt::format("= {} is too large", item->via.u64));
  value = item->via.u64;
}

void DescReader::take_signed(const char* field, int64_t min, int64_t max, int64_t& value) {
  const msgpack::object* item = items_->at(next_++);
  if (item == nullptr) return;
  const bool positive = item->type == msgpack::type::POSITIVE_INTEGER;
  if (!positive && item->type != msgpack::type::NEGATIVE_INTEGER) {
    return reject(field, "is not a number");
  }
  const bool fits = positive ? item->via.u64 <= static_cast<uint64_t>(max) : item->via.i64 >= min;
  if (!fits) return reject(field, "is out of range");
  value = positive ? static_cast<int64_t>(item->via.u64) : item->via.i64;
}

void DescReader::take_handle(const char* field, Handle& value) {
  const msgpack::object* item = items_->at(next_++);
  if (item == nullptr) return;
  if (item->type != msgpack::type::BIN || item->via.bin.size != kHandleBytes) {
    return reject(field, "is not 64 bytes");
  }
  const auto bytes = std::as_bytes(std::span(item->via.bin.ptr, kHandleBytes));
  std::copy(bytes.begin(), bytes.end(), value.begin());
}

}  // namespace stagelink::moriio
