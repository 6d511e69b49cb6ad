#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stagelink/result.h"

// Which ranks of a stage hand their part of a KV cache to which ranks of the next stage, when the
// two have other sizes of tensor parallelism.
namespace stagelink::kv {

inline constexpr uint32_t kMaxTpSize = 1024;

struct TpTopology {
  uint32_t from_tp = 1;
  uint32_t to_tp = 1;
  // KV heads of the whole model; 0: not known, then at least as many as the larger of the two
  // sizes. With fewer than ranks each head has copies.
  uint32_t kv_heads = 0;
  // One latent row for a token, which every rank has: it moves whole.
  bool mla = false;
};

// A part of the heads of one rank's cache: from `first` on, `count` of `of` equal parts.
struct HeadShare {
  uint32_t first = 0;
  uint32_t count = 1;
  uint32_t of = 1;
  bool whole() const noexcept { return count == of; }
  friend bool operator==(const HeadShare&, const HeadShare&) = default;
};
// The share in heads of a tensor that has `heads`. Errors: invalid_argument if they do not divide.
struct HeadSpan {
  uint64_t first = 0;
  uint64_t count = 0;
};
Result<HeadSpan> heads_of(const HeadShare& share, uint64_t heads);

struct RankRoute {
  uint32_t rank = 0;  // The other side's.
  HeadShare ours;     // Of our rank's cache.
  HeadShare theirs;
  friend bool operator==(const RankRoute&, const RankRoute&) = default;
};

// The routes of all ranks, proven when it is made: every head of every receiver comes from exactly
// one sender that has it, and what senders put is what receivers get.
//
// Thread-safety: immutable.
class RankMap {
 public:
  // Errors: invalid_argument names the sizes that do not divide one another.
  static Result<RankMap> create(const TpTopology& topology);

  const TpTopology& topology() const noexcept { return topology_; }
  // What a sender puts, in the order of receivers; may be nothing where heads have copies. Errors:
  // invalid_argument for a rank that there is not.
  Result<std::vector<RankRoute>> sends(uint32_t from_rank) const;
  // What a receiver gets, in the order of its heads.
  Result<std::vector<RankRoute>> gets(uint32_t to_rank) const;
  uint32_t payloads() const noexcept { return payloads_; }  // Of one request.

  // "one to one", "2 senders to 1 receiver", "1 sender to 4 receivers", "MLA: whole, ..."
  std::string fan() const;
  // One line for each receiver: "rank 1 <- rank 2 (all of it), rank 3 (all of it)".
  std::vector<std::string> lines() const;

 private:
  explicit RankMap(const TpTopology& topology) noexcept : topology_(topology) {}
  Status fill();
  Status prove() const;

  TpTopology topology_;
  uint32_t heads_ = 1;  // In which the routes count: real ones, or equal parts.
  uint32_t payloads_ = 0;
  std::vector<std::vector<RankRoute>> sends_;
  std::vector<std::vector<RankRoute>> gets_;
};

// The rank that a worker has said it is. Unstated (-1) is 0 only where there is no other. Errors:
// invalid_argument.
Result<uint32_t> stated_rank(int64_t rank, uint32_t tp_size, std::string_view side);

// Keys of a request's payloads: vLLM-Omni's. Without tensor parallelism on either side
// "omni_0_to_1_kv_cache_R", else "R_0_0_2_1": request, stage, 0, ranks of sender and receiver.
struct KvEdge {
  std::string_view from_stage;
  std::string_view to_stage;
};
std::string kv_key(const TpTopology& topology, std::string_view request, const KvEdge& edge,
                   uint32_t from_rank, uint32_t to_rank);

}  // namespace stagelink::kv
