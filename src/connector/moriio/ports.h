#pragma once

#include <cstdint>
#include <vector>

#include "stagelink/result.h"

// Who binds which port, who talks to whom. Pure arithmetic: binders and dialers call the same
// functions, so that they cannot disagree.
namespace stagelink::moriio {

// Where a rank stands. dp_local is the data parallel rank within its pod: fold_dp_rank().
struct RankAddress {
  uint32_t dp_local = 0;
  uint32_t tp = 0;
  uint32_t tp_size = 1;  // Of the engine whose rank it is, never of the one who dials.
};

// dp_local * tp_size + tp: another offset for each rank of a pod. As vLLM 0.32 where dp_local is 0
// or tp_size is 1. Errors: invalid_argument if tp is not below tp_size or a rank is out of range.
Result<uint32_t> port_offset(const RankAddress& rank);
// base + offset. Errors: those of port_offset; limit (no_ports) beyond 65535; invalid_argument if
// base is 0.
Result<uint16_t> rank_port(uint32_t base, const RankAddress& rank);

// A global data parallel rank within its pod, and the pod. dp_size_local 0: unknown, one pod.
uint32_t fold_dp_rank(uint32_t dp_rank, uint32_t dp_size_local) noexcept;
uint32_t pod_of(uint32_t dp_rank, uint32_t dp_size_local) noexcept;

// What a peer says of its TP size; 0 or nothing means that it is as ours.
uint32_t known_tp_size(uint32_t remote, uint32_t local) noexcept;

// The remote rank that a local rank works with where every KV head is on every rank: MLA, or fewer
// heads than ranks. Sizes must divide one another. Errors: invalid_argument names both sizes.
Result<uint32_t> remote_tp_rank(uint32_t local_rank, uint32_t local_size, uint32_t remote_size);
// All ranks of the consumer that work with `producer_rank`: the inverse of remote_tp_rank as seen
// from the consumer. Empty: nobody does, so there is nothing to wait for.
Result<std::vector<uint32_t>> consumer_tp_ranks(uint32_t producer_rank, uint32_t producer_size,
                                                uint32_t consumer_size);
// How many releases a producer rank waits for, as vLLM 0.32 counts: 1, or consumer / producer.
Result<uint32_t> expected_ack_count(uint32_t producer_size, uint32_t consumer_size);

}  // namespace stagelink::moriio
