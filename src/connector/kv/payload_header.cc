#include "connector/kv/payload_header.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "base/text.h"
#include "connector/kv/json_scanner.h"

namespace stagelink::kv {
namespace {

constexpr auto kKvDtypes = std::to_array<KvDtype>({
    {"bool", 1},
    {"uint8", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"float16", 2},
    {"float32", 4},
    {"float64", 8},
    {"bfloat16", 2},
    {"complex64", 8},
    {"complex128", 16},
    {"float8_e4m3fn", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2", 1},
    {"float8_e5m2fnuz", 1},
});

constexpr std::string_view kKeys = "key_cache_";
constexpr std::string_view kValues = "value_cache_";

// Foreign text in a message.
std::string shown(std::string_view text) { return escape_control(text.substr(0, 80)); }

Status corrupt(std::string message) { return Status(Reason::kFrame, std::move(message)); }

uint32_t read_length(std::span<const std::byte> bytes) noexcept {
  uint32_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i)
    length = length << 8 | std::to_integer<uint32_t>(bytes[i]);
  return length;
}

// One entry of "td" as it came.
struct TensorEntry {
  std::string name;
  std::string dtype;
  bool has_dtype = false;
  std::optional<int64_t> index;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<int64_t> offset;
  std::optional<int64_t> bytes;
  bool missing = false;
};

class HeaderReader {
 public:
  HeaderReader(std::string_view json, PayloadHeader& header) : json_(json), header_(header) {}

  Status read() {
    if (!fields()) {
      if (!failure_.ok()) return failure_;
      return corrupt(fmt::format("Corrupted KV payload: header: {}", json_.problem()));
    }
    for (const char* const name : {"rid", "bids", "meta", "td", "nl"}) {
      if (std::ranges::find(seen_, name) != seen_.end()) continue;
      return corrupt(fmt::format("Corrupted KV payload: the header has no `{}`", name));
    }
    return tensors();
  }

 private:
  bool refuse(std::string message) {
    if (failure_.ok()) failure_ = corrupt(std::move(message));
    return false;
  }

  bool fields() {
    std::string key;
    if (!json_.begin_object()) return false;
    while (json_.next_key(key)) {
      if (std::ranges::find(seen_, key) != seen_.end()) {
        return refuse(fmt::format("Corrupted KV payload: the header has `{}` twice", shown(key)));
      }
      if (seen_.size() == kMaxFields) return refuse("Corrupted KV payload: too many header fields");
      seen_.push_back(key);
      if (!field(key)) return false;
    }
    return json_.finished();
  }

  bool field(const std::string& key) {
    std::string_view raw;
    if (key == "rid") return json_.string(header_.request_id);
    if (key == "bids") return block_ids();
    if (key == "nl") return layers();
    if (key == "td") return entries();
    if (key == "meta" && json_.peek() != '{') {
      return refuse("Corrupted KV payload: `meta` is no object");
    }
    if (!json_.skip(raw)) return false;
    if (key == "meta") header_.metadata = raw;
    return true;
  }

  bool block_ids() {
    if (!json_.begin_array()) return false;
    while (json_.next_item()) {
      int64_t id = 0;
      if (header_.block_ids.size() == kMaxBlockIds) {
        return refuse(fmt::format("Corrupted KV payload: more than {} block ids", kMaxBlockIds));
      }
      if (!json_.integer(id)) return false;
      header_.block_ids.push_back(id);
    }
    return !json_.failed();
  }

  bool layers() {
    int64_t layers = 0;
    if (!json_.integer(layers)) return false;
    if (layers < 0 || layers > kMaxLayers) {
      return refuse(
          fmt::format("Corrupted KV payload: {} layers, the limit is {}", layers, kMaxLayers));
    }
    header_.num_layers = static_cast<uint32_t>(layers);
    return true;
  }

  bool entries() {
    if (!json_.begin_array()) return false;
    while (json_.next_item()) {
      if (entries_.size() == size_t{2} * kMaxLayers) {
        return refuse(fmt::format("Corrupted KV payload: more than {} tensors", 2 * kMaxLayers));
      }
      TensorEntry& entry = entries_.emplace_back();
      std::string key;
      if (!json_.begin_object()) return false;
      while (json_.next_key(key)) {
        if (!entry_field(entry, key)) return false;
      }
      if (json_.failed()) return false;
    }
    return !json_.failed();
  }

  bool entry_field(TensorEntry& entry, std::string_view key) {
    std::string_view raw;
    if (key == "n") return json_.string(entry.name);
    if (key == "i") {
      if (json_.peek() == 'n') return json_.null();
      return whole(entry.index, "layer index");
    }
    if (key == "o") return whole(entry.offset, "tensor offset");
    if (key == "b") return whole(entry.bytes, "tensor size");
    if (key == "s") return shape(entry);
    if (key == "x" && json_.peek() != '0') return json_.boolean(entry.missing);
    if (key != "d" || json_.peek() == '"') {
      if (key != "d") return json_.skip(raw);
      return entry.has_dtype = json_.string(entry.dtype);
    }
    if (!json_.skip(raw)) return false;
    return refuse(fmt::format("Unsupported dtype in KV payload: {}", shown(raw)));
  }

  bool whole(std::optional<int64_t>& out, std::string_view what) {
    if (json_.peek() == '0') {
      int64_t value = 0;
      if (!json_.integer(value)) return false;
      out = value;
      return true;
    }
    std::string_view raw;
    if (!json_.skip(raw)) return false;
    return refuse(fmt::format("Invalid {} in KV payload: {}", what, shown(raw)));
  }

  bool shape(TensorEntry& entry) {
    if (!json_.begin_array()) return false;
    std::vector<uint64_t> out;
    while (json_.next_item()) {
      int64_t extent = 0;
      if (!json_.integer(extent)) return false;
      if (extent < 0 || out.size() == kMaxTensorRank) {
        return refuse(
            fmt::format("Corrupted KV payload: {} has a shape that is none", shown(entry.name)));
      }
      out.push_back(static_cast<uint64_t>(extent));
    }
    entry.shape = std::move(out);
    return !json_.failed();
  }

  Status tensors() {
    // Which of the layers have been named, keys and values.
    std::vector<bool> named(size_t{2} * header_.num_layers);
    for (const TensorEntry& entry : entries_) {
      SL_ASSIGN(PayloadTensor tensor, identified(entry));
      const size_t place = size_t{2} * tensor.layer + (tensor.is_value ? 1 : 0);
      if (named[place]) {
        return corrupt(fmt::format("Corrupted KV payload: {} is there twice", tensor.name()));
      }
      named[place] = true;
      if (entry.missing) continue;
      SL_TRY(measured(entry, tensor));
      header_.tensors.push_back(std::move(tensor));
    }
    return spans();
  }

  Result<PayloadTensor> identified(const TensorEntry& entry) const {
    PayloadTensor tensor;
    tensor.is_value = entry.name.starts_with(kValues);
    const std::string_view prefix = tensor.is_value ? kValues : kKeys;
    const std::string_view name = entry.name;
    int64_t named = -1;
    if (name.starts_with(prefix)) {
      const std::string_view digits = name.substr(prefix.size());
      const auto [stop, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), named);
      if (error != std::errc() || stop != digits.data() + digits.size()) named = -1;
    }
    if (named < 0) {
      return corrupt(fmt::format("Invalid KV tensor name in payload: {}", shown(name)));
    }
    const int64_t layer = entry.index.value_or(named);
    if (layer < 0 || layer >= header_.num_layers) {
      return corrupt(fmt::format("Invalid layer index in KV payload: {} (num_layers={})", layer,
                                 header_.num_layers));
    }
    if (layer != named) {
      return corrupt(fmt::format("Invalid layer index in KV payload: {} of {}", layer, name));
    }
    tensor.layer = static_cast<uint32_t>(layer);
    return tensor;
  }

  Status measured(const TensorEntry& entry, PayloadTensor& tensor) const {
    tensor.dtype = find_kv_dtype(entry.dtype);
    if (tensor.dtype == nullptr) {
      return corrupt(fmt::format("Unsupported dtype in KV payload: {}",
                                 entry.has_dtype ? shown(entry.dtype) : "None"));
    }
    if (!entry.shape || !entry.offset || !entry.bytes) {
      return corrupt(fmt::format("Corrupted KV payload: {} lacks its {}", tensor.name(),
                                 !entry.shape    ? "shape"
                                 : !entry.offset ? "offset"
                                                 : "size"));
    }
    const uint64_t data = header_.payload_bytes - header_.data_offset;
    const int64_t offset = *entry.offset;
    const int64_t bytes = *entry.bytes;
    if (offset < 0 || bytes < 0 || static_cast<uint64_t>(offset) > data ||
        static_cast<uint64_t>(bytes) > data - static_cast<uint64_t>(offset)) {
      return corrupt(fmt::format(
          "Corrupted KV payload tensor span for {}: offset={}, bytes={}, tensor_data_bytes={}",
          tensor.name(), offset, bytes, data));
    }
    tensor.offset = static_cast<uint64_t>(offset);
    tensor.bytes = static_cast<uint64_t>(bytes);
    tensor.shape = *entry.shape;
    if (sized(tensor)) return {};
    return corrupt(fmt::format("Corrupted KV payload: {} has {} bytes, which [{}] of {} has not",
                               tensor.name(), bytes, fmt::join(tensor.shape, ", "),
                               tensor.dtype->name));
  }

  static bool sized(const PayloadTensor& tensor) noexcept {
    if (std::ranges::find(tensor.shape, 0U) != tensor.shape.end()) return tensor.bytes == 0;
    uint64_t bytes = tensor.dtype->bytes;
    for (const uint64_t extent : tensor.shape) {
      if (__builtin_mul_overflow(bytes, extent, &bytes)) return false;
    }
    return bytes == tensor.bytes;
  }

  // Nothing over one another, only padding between.
  Status spans() const {
    std::vector<const PayloadTensor*> order;
    for (const PayloadTensor& tensor : header_.tensors) {
      if (tensor.bytes > 0) order.push_back(&tensor);
    }
    std::ranges::sort(order, {}, &PayloadTensor::offset);
    uint64_t end = 0;
    for (const PayloadTensor* const tensor : order) {
      if (tensor->offset < end) {
        return corrupt(fmt::format("Corrupted KV payload: {} begins at {}, inside another tensor",
                                   tensor->name(), tensor->offset));
      }
      if (tensor->offset - end >= kTensorAlign) {
        return corrupt(fmt::format("Corrupted KV payload: {} bytes before {} belong to no tensor",
                                   tensor->offset - end, tensor->name()));
      }
      end = tensor->offset + tensor->bytes;
    }
    const uint64_t data = header_.payload_bytes - header_.data_offset;
    if (data == end) return {};
    return corrupt(fmt::format("Corrupted KV payload: {} trailing bytes", data - end));
  }

  static constexpr size_t kMaxFields = 64;

  JsonScanner json_;
  PayloadHeader& header_;
  std::vector<std::string> seen_;
  std::vector<TensorEntry> entries_;
  Status failure_;
};

void append_tensor(std::string& out, const PayloadTensor& tensor) {
  fmt::format_to(std::back_inserter(out), R"({{"n":"{}","i":{},"d":"{}","s":[{}],"o":{},"b":{}}})",
                 tensor.name(), tensor.layer, tensor.dtype->name, fmt::join(tensor.shape, ","),
                 tensor.offset, tensor.bytes);
}

}  // namespace

const KvDtype* find_kv_dtype(std::string_view name) noexcept {
  const auto found = std::ranges::find(kKvDtypes, name, &KvDtype::name);
  return found == kKvDtypes.end() ? nullptr : &*found;
}

std::string PayloadTensor::name() const {
  return fmt::format("{}{}", is_value ? kValues : kKeys, layer);
}

Result<uint64_t> header_bytes(std::span<const std::byte> beginning, uint64_t payload_bytes) {
  if (beginning.size() < kLengthBytes || payload_bytes < kLengthBytes) {
    return corrupt("Corrupted KV payload: missing 4-byte header length");
  }
  const uint32_t length = read_length(beginning);
  if (length > payload_bytes - kLengthBytes) {
    return corrupt(fmt::format("Corrupted KV payload: header_len={} exceeds buffer size={}", length,
                               payload_bytes));
  }
  if (length > kMaxHeaderBytes) {
    return corrupt(fmt::format("Corrupted KV payload: header_len={} exceeds the limit of {}",
                               length, kMaxHeaderBytes));
  }
  return kLengthBytes + uint64_t{length};
}

Result<PayloadHeader> decode_header(std::span<const std::byte> header, uint64_t payload_bytes,
                                    std::string_view request_id) {
  SL_ASSIGN(const uint64_t bytes, header_bytes(header, payload_bytes));
  if (header.size() < bytes) {
    return corrupt(fmt::format("Corrupted KV payload: header_len={}, of which {} bytes are there",
                               bytes - kLengthBytes, header.size() - kLengthBytes));
  }
  PayloadHeader out;
  out.data_offset = bytes;
  out.payload_bytes = payload_bytes;
  const std::string_view json(reinterpret_cast<const char*>(header.data()) + kLengthBytes,
                              bytes - kLengthBytes);
  SL_TRY(HeaderReader(json, out).read());
  if (!request_id.empty() && out.request_id != request_id) {
    return corrupt(fmt::format("KV payload of request {}, where that of {} was asked for",
                               shown(out.request_id), shown(request_id)));
  }
  return out;
}

Result<std::string> encode_header(const PayloadHeader& header, uint32_t align) {
  std::string out(kLengthBytes, '\0');
  out += R"({"rid":)";
  if (!append_json_string(out, header.request_id)) {
    return Status(Reason::kInvalidArgument, "request_id is no UTF-8");
  }
  fmt::format_to(std::back_inserter(out), R"(,"bids":[{}],"meta":{},"td":[)",
                 fmt::join(header.block_ids, ","), header.metadata);
  size_t next = 0;
  bool first = true;
  for (const bool is_value : {false, true}) {
    for (uint32_t layer = 0; layer < header.num_layers; ++layer) {
      if (!first) out.push_back(',');
      first = false;
      const bool there = next < header.tensors.size() && header.tensors[next].layer == layer &&
                         header.tensors[next].is_value == is_value;
      if (there) {
        append_tensor(out, header.tensors[next++]);
      } else {
        fmt::format_to(std::back_inserter(out), R"({{"n":"{}{}","x":true}})",
                       is_value ? kValues : kKeys, layer);
      }
    }
  }
  fmt::format_to(std::back_inserter(out), R"(],"nl":{}}})", header.num_layers);
  if (align > 1) out.resize((out.size() + align - 1) / align * align, ' ');
  const uint64_t length = out.size() - kLengthBytes;
  if (length > kMaxHeaderBytes) {
    return Status(Reason::kTooLarge,
                  fmt::format("a header of {} bytes, the limit is {}", length, kMaxHeaderBytes));
  }
  for (size_t i = 0; i < kLengthBytes; ++i) {
    out[i] = static_cast<char>(length >> (8 * (kLengthBytes - 1 - i)));
  }
  return out;
}

}  // namespace stagelink::kv
