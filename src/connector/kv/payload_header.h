#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/result.h"

// The payload in which vLLM-Omni hands the KV cache of one request from stage to stage:
//
//   u32, big-endian: n | n bytes of JSON | tensors, each where the JSON says, from there on
//
//   {"rid": request, "bids": [block, ...], "meta": {...}, "td": [tensor, ...], "nl": layers}
//   tensor: {"n": "key_cache_3", "i": 3, "d": "bfloat16", "s": [tokens, heads, dim], "o": offset,
//            "b": bytes}   or, where there is none, {"n": "value_cache_3", "x": true}
//
// All keys come first, then all values. vLLM-Omni writes the tensors back to back wherever the JSON
// happens to end. Ours may end in white space and have gaps, so that every tensor is aligned; both
// read either.
namespace stagelink::kv {

inline constexpr size_t kLengthBytes = 4;
inline constexpr uint32_t kTensorAlign = 64;

// Bounds of what a peer may send.
inline constexpr uint64_t kMaxHeaderBytes = 16 << 20;
inline constexpr uint32_t kMaxLayers = 4096;
inline constexpr size_t kMaxTensorRank = 8;
inline constexpr size_t kMaxBlockIds = 1 << 20;

struct KvDtype {
  std::string_view name;  // Torch's, without "torch."; of a fixed table.
  uint32_t bytes = 0;
};
// Null: payloads cannot hold it.
const KvDtype* find_kv_dtype(std::string_view name) noexcept;

struct PayloadTensor {
  bool is_value = false;  // Else keys.
  uint32_t layer = 0;
  const KvDtype* dtype = nullptr;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // From the end of the header.
  uint64_t bytes = 0;

  std::string name() const;  // "key_cache_3"
};

struct PayloadHeader {
  std::string request_id;
  std::vector<int64_t> block_ids;
  std::string metadata = "{}";  // A JSON object.
  uint32_t num_layers = 0;
  std::vector<PayloadTensor> tensors;  // In the order of the payload; missing layers are left out.
  uint64_t data_offset = 0;            // Where the tensors begin.
  uint64_t payload_bytes = 0;
};

// The bytes of length and JSON together, from the first four bytes of a payload. Errors: corrupt
// (frame), with the texts of vLLM-Omni where it has one.
Result<uint64_t> header_bytes(std::span<const std::byte> beginning, uint64_t payload_bytes);

// Reads length and JSON of a payload of so many bytes, and checks all of it: every tensor within
// the payload, none over another, none twice, as large as its shape and type say, nothing but
// padding between and nothing behind. `request_id`: whose payload it must be; empty: anybody's.
// Errors as above.
Result<PayloadHeader> decode_header(std::span<const std::byte> header, uint64_t payload_bytes,
                                    std::string_view request_id = {});

// Writes length and JSON; the tensors' offsets must be set. The result is as long as a multiple of
// `align`; with 1 it is byte for byte what vLLM-Omni writes. Errors: invalid_argument for ids that
// are no UTF-8, limit (too_large).
Result<std::string> encode_header(const PayloadHeader& header, uint32_t align = kTensorAlign);

}  // namespace stagelink::kv
