#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "connector/kv/merge_plan.h"
#include "connector/kv/payload_header.h"
#include "connector/kv/rank_map.h"
#include "connector/pull/pull_connector.h"
#include "stagelink/result.h"

namespace stagelink::kv {

struct StraightRequest {
  std::span<const pull::GetRequest> gets;  // In the order of `routes`.
  std::span<const RankRoute> routes;
  std::string_view request_id;
  uint32_t to_rank = 0;
  uint64_t kv_heads = 0;  // Of this rank; 0: not known.
};

// The payloads of one request, claimed at all senders, and read from their pools straight to where
// the tensors are wanted. Dropped before it was read it gives the claims up, and nothing is lost.
//
// Thread-safety: one thread at a time.
class StraightGet {
 public:
  // What the claims came to, one outcome a payload; `get` is there if all are ok. Waits for senders
  // as `terms` say.
  struct Claimed {
    std::vector<Status> outcomes;
    std::unique_ptr<StraightGet> get;
  };
  // Errors: those of PullConnector::read_many, decode_header, MergePlan::create.
  static Result<Claimed> claim(pull::PullConnector& connector, const StraightRequest& request,
                               const pull::GetTerms& terms);

  std::span<const PayloadHeader> headers() const noexcept { return headers_; }
  const MergePlan& plan() const noexcept { return plan_; }
  uint64_t payload_bytes() const noexcept;

  // Fills memory of plan().bytes(), once. Parts whose heads stand alone go there directly, the
  // others, and those of senders of 0.30, by way of the connector's pool. Errors: those of
  // read_many; no_space.
  Status read(std::span<std::byte> memory, Duration timeout);

 private:
  explicit StraightGet(pull::PullConnector& connector) noexcept : connector_(connector) {}
  Status read_headers(const StraightRequest& request);

  pull::PullConnector& connector_;
  std::vector<pull::Claim> claims_;
  std::vector<PayloadHeader> headers_;
  MergePlan plan_;
};

}  // namespace stagelink::kv
