#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/region.h"
#include "stagelink/result.h"

namespace stagelink::encoder_cache {

// One embedding, as its producer describes it.
struct EmbeddingInfo {
  uint64_t nbytes = 0;
  std::vector<uint64_t> shape;
  std::string dtype;  // torch's name without "torch.".
  friend bool operator==(const EmbeddingInfo&, const EmbeddingInfo&) = default;
};

// What a registry says: who has it, and which of the producer's embeddings of this hash it is.
struct ProducerEntry {
  EmbeddingInfo info;
  std::string producer_zmq;  // "tcp://host:port"
  uint64_t generation = 0;
  bool knows_leases = true;  // False: a registry of the seed said it, which is its producer's own.
  friend bool operator==(const ProducerEntry&, const ProducerEntry&) = default;
};

// What a producer publishes under its lease.
struct PublishedItem {
  std::string mm_hash;
  EmbeddingInfo info;
  uint64_t generation = 0;
  friend bool operator==(const PublishedItem&, const PublishedItem&) = default;
};

// 128 random bits that only their producer knows: who has them may renew and unpublish.
using LeaseId = InstanceId;
// 32 lower-case hex digits. Errors: invalid_argument.
Result<InstanceId> parse_instance(std::string_view text);

inline constexpr size_t kMaxHashBytes = 256;
inline constexpr size_t kMaxShapeDims = 8;
inline constexpr size_t kMaxAddressBytes = 263;  // tcp://, a host name, a port.

// Plain text of 1 to kMaxHashBytes. Errors: invalid_argument.
Status check_mm_hash(std::string_view mm_hash);
// A dtype that payloads may hold, at most kMaxShapeDims dimensions of 1 to 2^32 - 1, and as many
// bytes as they make. Errors: invalid_argument names the field, incompatible the two sizes.
Status check_embedding(const EmbeddingInfo& info);
// "tcp://host:port", IPv6 in brackets, port not 0. Errors: invalid_argument.
Status check_producer_address(std::string_view address);

}  // namespace stagelink::encoder_cache
