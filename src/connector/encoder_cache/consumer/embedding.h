#pragma once

#include <span>
#include <string>
#include <vector>

#include "connector/encoder_cache/registry/entry.h"
#include "connector/pull/memory/piece.h"
#include "connector/pull/pull_types.h"

namespace stagelink::encoder_cache {

// One embedding that is wanted.
struct LoadRequest {
  std::string mm_hash;
  // Who has it, as a registry says: asked in this order. The first says what it must be.
  std::vector<ProducerEntry> producers;
  // Where it goes, with as many bytes as it has; empty: the consumer's pool.
  std::span<std::byte> into;
  // The producer is a Consumer that has handed it on, as the generation of its entry.
  bool is_handed_on = false;
};

// One that was loaded.
//
// Thread-safety: a value; the bytes are for its users to order.
struct Embedding {
  std::string mm_hash;
  EmbeddingInfo info;
  std::string producer_zmq;  // Whose it was.
  pull::Piece piece;         // Empty if it went to given memory.
  pull::GetTimes times;
};

struct LoadTerms {
  Duration timeout = Duration::zero();  // For everything. Zero: pull_timeout.
  Interrupted interrupted;
};

}  // namespace stagelink::encoder_cache
