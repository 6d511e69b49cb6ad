#include "connector/moriio/ports.h"

#include <fmt/format.h>

#include "connector/moriio/messages/message_fields.h"

namespace stagelink::moriio {
namespace {

Status wrong(std::string message) { return Status(Reason::kInvalidArgument, std::move(message)); }

Status check_size(const char* name, uint32_t size) {
  if (size >= 1 && size <= kMaxTpSize) return {};
  return wrong(fmt::format("{} is {}, not within 1 to {}", name, size, kMaxTpSize));
}

Status check_divides(const char* name_a, uint32_t a, const char* name_b, uint32_t b) {
  SL_TRY(check_size(name_a, a));
  SL_TRY(check_size(name_b, b));
  if (a % b == 0 || b % a == 0) return {};
  return wrong(fmt::format("{} {} and {} {}: neither divides the other", name_a, a, name_b, b));
}

}  // namespace

Result<uint32_t> port_offset(const RankAddress& rank) {
  SL_TRY(check_size("tp_size", rank.tp_size));
  if (rank.tp >= rank.tp_size) {
    return wrong(fmt::format("tp_rank is {}, tp_size is {}", rank.tp, rank.tp_size));
  }
  if (rank.dp_local > kMaxDpRank) {
    return wrong(fmt::format("dp_rank is {}, the limit is {}", rank.dp_local, kMaxDpRank));
  }
  return rank.dp_local * rank.tp_size + rank.tp;
}

Result<uint16_t> rank_port(uint32_t base, const RankAddress& rank) {
  if (base < 1 || base > 65535) return wrong(fmt::format("port {} is not within 1 to 65535", base));
  SL_ASSIGN(const uint32_t offset, port_offset(rank));
  if (offset > 65535 - base) {
    return Status(Reason::kNoPorts,
                  fmt::format("port {} + {} of dp rank {}, tp rank {} is above 65535", base, offset,
                              rank.dp_local, rank.tp));
  }
  return static_cast<uint16_t>(base + offset);
}

uint32_t fold_dp_rank(uint32_t dp_rank, uint32_t dp_size_local) noexcept {
  return dp_size_local == 0 ? dp_rank : dp_rank % dp_size_local;
}

uint32_t pod_of(uint32_t dp_rank, uint32_t dp_size_local) noexcept {
  return dp_size_local == 0 ? 0 : dp_rank / dp_size_local;
}

uint32_t known_tp_size(uint32_t remote, uint32_t local) noexcept {
  return remote == 0 ? local : remote;
}

Result<uint32_t> remote_tp_rank(uint32_t local_rank, uint32_t local_size, uint32_t remote_size) {
  remote_size = known_tp_size(remote_size, local_size);
  SL_TRY(check_divides("tp_size", local_size, "remote tp_size", remote_size));
  if (local_rank >= local_size) {
    return wrong(fmt::format("tp_rank is {}, tp_size is {}", local_rank, local_size));
  }
  if (remote_size >= local_size) return local_rank * (remote_size / local_size);
  return local_rank / (local_size / remote_size);
}

Result<std::vector<uint32_t>> consumer_tp_ranks(uint32_t producer_rank, uint32_t producer_size,
                                                uint32_t consumer_size) {
  consumer_size = known_tp_size(consumer_size, producer_size);
  SL_TRY(check_divides("producer tp_size", producer_size, "consumer tp_size", consumer_size));
  if (producer_rank >= producer_size) {
    return wrong(fmt::format("tp_rank is {}, tp_size is {}", producer_rank, producer_size));
  }
  std::vector<uint32_t> out;
  if (consumer_size >= producer_size) {
    const uint32_t share = consumer_size / producer_size;
    for (uint32_t i = 0; i < share; ++i) out.push_back(producer_rank * share + i);
  } else if (const uint32_t ratio = producer_size / consumer_size; producer_rank % ratio == 0) {
    out.push_back(producer_rank / ratio);
  }
  return out;
}

Result<uint32_t> expected_ack_count(uint32_t producer_size, uint32_t consumer_size) {
  consumer_size = known_tp_size(consumer_size, producer_size);
  SL_TRY(check_divides("producer tp_size", producer_size, "consumer tp_size", consumer_size));
  return consumer_size <= producer_size ? 1 : consumer_size / producer_size;
}

}  // namespace stagelink::moriio
