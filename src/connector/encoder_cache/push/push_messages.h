#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "connector/encoder_cache/registry/entry.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

// What a producer and a consumer's reservation desk say to each other, in JSON;
// docs/encoder-cache.md lists it. Every decoder is total: any text gives a value or an error.
namespace stagelink::encoder_cache {

inline constexpr size_t kMaxTransferIdBytes = 256;
inline constexpr size_t kMaxPushItems = 256;        // Of a batch.
inline constexpr size_t kMaxPushBytes = 192 << 10;  // What a control port takes.
inline constexpr size_t kMaxIdentityText = 4095;

// Plain text of 1 to kMaxTransferIdBytes. Errors: invalid_argument.
Status check_transfer_id(std::string_view transfer_id);

// A reservation, and what only its writer was told. Both are random.
struct Ticket {
  InstanceId reservation;
  InstanceId secret;
};

struct ReserveAsk {
  std::string transfer_id;
  std::string mm_hash;
  EmbeddingInfo info;
  std::string identity;
  std::optional<Duration> wait;  // For room; not said: as long as the consumer allows.
  std::optional<Ticket> ticket;  // Refreshes that reservation.
};

struct CompleteAsk {
  std::string transfer_id;
  Ticket ticket;
  // Where the embedding lies: what its producer hands on.
  std::string producer_zmq;
  uint64_t generation = 0;
};

struct CancelAsk {
  std::string transfer_id;
  Ticket ticket;
};

struct StatusAsk {
  std::string transfer_id;
};

using PushAsk = std::variant<ReserveAsk, CompleteAsk, CancelAsk, StatusAsk>;

struct PushMessage {
  uint64_t id = 0;  // Said again in the answer. Of peers that ask one by one: 0.
  bool is_batch = false;
  std::vector<Result<PushAsk>> items;
};

// Errors: corrupt (frame). One of a batch that is wrong fails alone. `id` is set as far as it can
// be read.
Result<PushMessage> decode_push(std::string_view text, uint64_t& id);
std::string encode_push(uint64_t id, const PushAsk& ask);

// --- Answers

struct Reserved {
  Ticket ticket;  // None where it was cancelled.
  uint64_t nbytes = 0;
  bool write = false;  // Its transfer is the one that is waited for; else another one is.
  bool ready = false;  // Nothing need be done: it is here.
  bool cached = false;
  bool cancelled = false;  // Nobody wants it.
  Duration ttl = Duration::zero();
};

struct Completed {
  bool completed = false;
  bool became_ready = false;  // Through this one.
};

struct PushStatus {
  std::string mm_hash;
  EmbeddingInfo info;
  InstanceId reservation;
  bool ready = false;
  bool write = false;
};

std::string encode_result(const Reserved& reserved);
std::string encode_result(const Completed& completed);
std::string encode_cancelled(bool cancelled);
std::string encode_result(const std::optional<PushStatus>& status);

// `results`: of the items, in JSON.
std::string encode_answer(uint64_t id, const Result<std::string>& result);
std::string encode_batch_answer(uint64_t id, std::span<const Result<std::string>> results);

struct PushReply {
  uint64_t id = 0;
  Status status;
  Reserved reserved;    // Where it answers a reserve.
  Completed completed;  // Where it answers a complete.
};
// Of one ask, not of a batch. Errors: corrupt (frame).
Result<PushReply> decode_reply(std::string_view text);

}  // namespace stagelink::encoder_cache
