#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "connector/pull/memory/piece.h"
#include "connector/pull/memory/stamp_slots.h"
#include "connector/pull/messages/messages.h"
#include "connector/pull/pull_types.h"

namespace stagelink::pull {

// The payload of one put: where it lies and what keeps it there. Whoever drops the last reference
// gives the memory back, so it is not to be dropped under a lock.
//
// Thread-safety: immutable.
struct OfferBody {
  OfferBody() = default;
  OfferBody(const OfferBody&) = delete;
  OfferBody& operator=(const OfferBody&) = delete;
  ~OfferBody() {
    stamp.clear();  // Before anybody else can have the memory.
    piece = Piece();
    regions.clear();
    if (free) free();
  }

  uint64_t generation = 0;
  uint64_t bytes = 0;
  bool is_fast_path = true;
  Message grant;                    // encode_body() of where it lies.
  std::vector<uint64_t> addresses;  // The same for peers of 0.30.
  std::vector<uint64_t> lengths;

  Piece piece;
  std::vector<std::shared_ptr<const Region>> regions;
  RangesFree free;
  StampSlot stamp;
};

}  // namespace stagelink::pull
