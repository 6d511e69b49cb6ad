#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connector/pull/memory/piece.h"
#include "stagelink/engine_options.h"
#include "stagelink/object_store.h"  // Interrupted
#include "stagelink/region.h"

namespace stagelink::pull {

// Keys: 1 to 1024 bytes, any bytes. Payloads: 1 byte to 2^48.
inline constexpr size_t kMaxKeyBytes = 1024;
inline constexpr size_t kMaxOfferPieces = 4096;
inline constexpr uint32_t kMaxReaders = 1'000'000;

// What a put gives and a get takes. Complete: as put gave it. Partial: host and port alone, then
// the rest is asked for. A generation of 0 stands for whatever is offered; another one for that put
// alone, so that stale metadata is `superseded` and never somebody else's bytes.
struct PullMetadata {
  std::string source_host;
  uint16_t source_port = 0;
  uint16_t source_rpc_port = 0;
  std::vector<uint64_t> source_addrs;
  std::vector<uint64_t> lengths;
  uint64_t data_size = 0;
  bool is_fast_path = true;  // Raw bytes; else a serializer's.
  uint64_t generation = 0;
};

struct PutTerms {
  // When so many have read it, it goes; at most kMaxReaders. 0: any number; it goes by its time.
  uint32_t readers = 1;
  Duration ttl = Duration::zero();      // Zero: buffer_ttl_seconds; negative: for ever.
  Duration timeout = Duration::zero();  // For space. Zero: put_timeout.
  bool is_fast_path = true;
  Interrupted interrupted;
};

// Memory that readers read in place.
struct RegisteredRange {
  std::shared_ptr<const Region> region;  // Of PullConnector::register_memory().
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
// Told once, when nobody reads the ranges any more; on any thread, and not to wait there.
using RangesFree = std::function<void()>;

struct GetTerms {
  Duration wait = Duration::zero();     // For the key to be put. Zero: look once.
  Duration timeout = Duration::zero();  // For everything. Zero: wait + ask_timeout + claim_timeout.
  Interrupted interrupted;
};

struct GetRequest {
  std::string_view key;
  const PullMetadata* metadata = nullptr;  // Null: the default sender.
  // Where the payload goes, in this order, exactly as many bytes as it has. Empty: a piece of the
  // pool. Fastest into memory that is registered.
  std::span<const std::span<std::byte>> into;
};

// Where the time of a get went.
struct GetTimes {
  Duration query{};
  Duration alloc{};
  Duration read{};
  Duration total{};
};

// A payload that was pulled.
struct Received {
  Piece piece;  // Empty if it went to given memory.
  uint64_t bytes = 0;
  uint64_t generation = 0;
  bool is_fast_path = true;
  GetTimes times;
};

struct ConnectionInfo {
  std::string host;  // As told to peers.
  uint16_t zmq_port = 0;
  uint16_t rpc_port = 0;
};

// Of the life of a connector.
struct PullHealth {
  std::string_view status;  // "healthy", "closed"
  ConnectionInfo address;
  uint64_t pool_size = 0;
  uint64_t pool_used = 0;
  uint64_t puts = 0;
  uint64_t gets = 0;
  uint64_t bytes_transferred = 0;
  uint64_t errors = 0;    // Puts and gets that failed; misses and timeouts not.
  uint64_t timeouts = 0;  // Of gets that had to wait, and of senders that did not answer.
  uint64_t misses = 0;    // Gets that looked and found nothing.
  uint64_t offers = 0;    // Whose memory is held, retired ones too.
  uint64_t claims = 0;
  uint64_t waiting = 0;  // Claims that wait for a put.
};

}  // namespace stagelink::pull
