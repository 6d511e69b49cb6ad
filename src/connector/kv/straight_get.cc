#include "connector/kv/straight_get.h"

#include <algorithm>
#include <numeric>

namespace stagelink::kv {
namespace {

// Long enough for the headers of most models, so that one read brings them.
constexpr uint64_t kFirstRead = 64 << 10;
constexpr Duration kStraightSpace = std::chrono::seconds(5);

// Reads a part of each claim; the first failure.
Status read_all(pull::PullConnector& connector, std::span<const pull::ClaimRead> reads,
                Duration timeout) {
  for (const Status& status : connector.read_many(reads, timeout)) SL_TRY(status);
  return {};
}

}  // namespace

Result<StraightGet::Claimed> StraightGet::claim(pull::PullConnector& connector,
                                                const StraightRequest& request,
                                                const pull::GetTerms& terms) {
  Claimed out;
  std::unique_ptr<StraightGet> get(new StraightGet(connector));
  for (auto& claim : connector.claim_many(request.gets, terms)) {
    out.outcomes.push_back(claim.status());
    if (claim.ok()) get->claims_.push_back(*std::move(claim));
  }
  if (get->claims_.size() < request.gets.size()) return out;
  SL_TRY(get->read_headers(request));
  std::vector<MergePart> parts;
  for (size_t at = 0; at < request.routes.size(); ++at) {
    SL_ASSIGN(const bool sliced, sliced_by_sender(get->headers_[at], request.to_rank));
    parts.push_back({&get->headers_[at], request.routes[at], sliced});
  }
  SL_ASSIGN(get->plan_, MergePlan::create(parts, request.kv_heads));
  out.get = std::move(get);
  return out;
}

Status StraightGet::read_headers(const StraightRequest& request) {
  const size_t count = claims_.size();
  std::vector<pull::Piece> pieces(count);
  std::vector<pull::ReadPart> parts(count);
  std::vector<pull::ClaimRead> reads(count);
  std::vector<uint64_t> wanted(count);
  for (size_t at = 0; at < count; ++at) wanted[at] = std::min(claims_[at].bytes(), kFirstRead);
  // A second round for headers that are longer than the first read.
  for (int round = 0; round < 2; ++round) {
    size_t used = 0;
    for (size_t at = 0; at < count; ++at) {
      if (pieces[at] && pieces[at].bytes().size() >= wanted[at]) continue;
      SL_ASSIGN(pieces[at], connector_.allocate(wanted[at], kStraightSpace));
      parts[used] = {0, pieces[at].bytes()};
      reads[used] = {&claims_[at], {&parts[used], 1}};
      ++used;
    }
    SL_TRY(read_all(connector_, std::span(reads).first(used), Duration::zero()));
    for (size_t at = 0; at < count; ++at) {
      SL_ASSIGN(wanted[at], header_bytes(pieces[at].bytes(), claims_[at].bytes()));
    }
  }
  for (size_t at = 0; at < count; ++at) {
    SL_ASSIGN(PayloadHeader header,
              decode_header(pieces[at].bytes(), claims_[at].bytes(), request.request_id));
    headers_.push_back(std::move(header));
  }
  return {};
}

uint64_t StraightGet::payload_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const PayloadHeader& header : headers_) bytes += header.payload_bytes;
  return bytes;
}

Status StraightGet::read(std::span<std::byte> memory, Duration timeout) {
  if (memory.size() != plan_.bytes() || claims_.empty()) {
    return Status(Reason::kInvalidArgument, "memory of another size, or it was read already");
  }
  SL_ASSIGN(const auto region, connector_.register_memory(memory.data(), memory.size()));
  std::vector<pull::Piece> pieces(claims_.size());
  std::vector<std::vector<pull::ReadPart>> parts(claims_.size());
  std::vector<pull::ClaimRead> reads;
  for (size_t at = 0; at < claims_.size(); ++at) {
    if (plan_.dense(at) && !claims_[at].pool_only()) {
      for (const Placement& placement : plan_.placements(at)) {
        parts[at].push_back(
            {placement.from, memory.subspan(placement.to, placement.rows * placement.row_bytes)});
      }
    } else {
      SL_ASSIGN(pieces[at], connector_.allocate(claims_[at].bytes(), kStraightSpace));
      parts[at].push_back({0, pieces[at].bytes()});
    }
    reads.push_back({&claims_[at], parts[at]});
  }
  SL_TRY(read_all(connector_, reads, timeout));
  for (size_t at = 0; at < claims_.size(); ++at) {
    if (pieces[at]) SL_TRY(plan_.place(at, pieces[at].bytes(), memory));
  }
  for (pull::Claim& claim : claims_) connector_.finish(std::move(claim));
  claims_.clear();
  return {};
}

}  // namespace stagelink::kv
