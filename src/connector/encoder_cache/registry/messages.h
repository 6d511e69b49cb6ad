#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connector/encoder_cache/registry/entry.h"
#include "connector/encoder_cache/registry/registry_table.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

// The bodies of requests to a registry and of its answers, in JSON; docs/encoder-cache.md lists
// them. Every decoder is total: any text gives a value or an error. Fields that are not known are
// left alone. Errors of all decoders: corrupt (frame) names the field.
namespace stagelink::encoder_cache {

// Items and hashes in one request.
inline constexpr size_t kMaxBatchHashes = 1024;

struct QueryRequest {
  std::vector<std::string> mm_hashes;
  Duration wait = Duration::zero();
};

struct PublishRequest {
  PublishTerms terms;
  std::vector<PublishedItem> items;
};

struct UnpublishRequest {
  LeaseId lease;
  bool all = false;
  std::vector<std::string> mm_hashes;
};

struct RenewRequest {
  LeaseId lease;
  Duration ttl = Duration::zero();
};

// What the seed's consumers read: {nbytes, shape, dtype, producer_zmq}.
std::string encode_info(const ProducerEntry& entry);
Result<ProducerEntry> decode_info(std::string_view body);

std::string encode(const QueryRequest& request);
Result<QueryRequest> decode_query(std::string_view body);
using Producers = std::vector<std::vector<ProducerEntry>>;
std::string encode_producers(const Producers& producers);
Result<Producers> decode_producers(std::string_view body, size_t hashes);

// No copies: items of the caller.
std::string encode_publish(const PublishTerms& terms, std::span<const PublishedItem> items);
Result<PublishRequest> decode_publish(std::string_view body);
std::string encode(const PublishOutcome& outcome);
Result<PublishOutcome> decode_outcome(std::string_view body, size_t items);

std::string encode(const UnpublishRequest& request);
Result<UnpublishRequest> decode_unpublish(std::string_view body);
std::string encode(const RenewRequest& request);
Result<RenewRequest> decode_renew(std::string_view body);

// {"count": n}: how many entries are gone, or are held.
std::string encode_count(uint64_t count);
Result<uint64_t> decode_count(std::string_view body);

// {"detail": text}, as FastAPI writes its errors.
std::string encode_detail(std::string_view text);
// The text; empty if it is no such body.
std::string decode_detail(std::string_view body);

}  // namespace stagelink::encoder_cache
