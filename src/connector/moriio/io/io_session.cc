#include "connector/moriio/io/io_session.h"

#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "connector/moriio/io/inbound_table.h"

namespace stagelink::moriio {
namespace {

Status check_lengths(const IoRanges& ranges) {
  const size_t count = ranges.local_offsets.size();
  if (ranges.remote_offsets.size() == count && ranges.sizes.size() == count) return {};
  return {Reason::kInvalidArgument,
          fmt::format("{} local offsets, {} remote offsets and {} sizes", count,
                      ranges.remote_offsets.size(), ranges.sizes.size())};
}

Status range_status(std::string_view side, size_t index, uint64_t offset, uint64_t bytes,
                    uint64_t limit) {
  return {Reason::kOutOfBounds, fmt::format("range {}: {} bytes at {} offset {} of memory of {}",
                                            index, bytes, side, offset, limit)};
}

constexpr bool inside(uint64_t offset, uint64_t bytes, uint64_t limit) noexcept {
  return bytes <= limit && offset <= limit - bytes;
}

// Offsets as they count in the regions that the memories lie in.
struct Rebased {
  std::vector<uint64_t> local;
  std::vector<uint64_t> remote;
};

std::span<const uint64_t> rebase(std::span<const uint64_t> offsets, uint64_t base,
                                 std::vector<uint64_t>& scratch) {
  if (base == 0) return offsets;
  scratch.resize(offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i) scratch[i] = offsets[i] + base;
  return scratch;
}

}  // namespace

StatusRef failed_status(const Status& why) {
  auto status = std::make_shared<TransferStatus>();
  status->update(status_code_of(why.reason()), status_message_of(why));
  return status;
}

IoSession::IoSession(Parts parts, Session session) noexcept
    : parts_(std::move(parts)), session_(std::move(session)) {}

StatusRef IoSession::read(uint64_t local_offset, uint64_t remote_offset, uint64_t bytes,
                          uint64_t id) {
  return batch_read({{&local_offset, 1}, {&remote_offset, 1}, {&bytes, 1}}, id);
}

StatusRef IoSession::write(uint64_t local_offset, uint64_t remote_offset, uint64_t bytes,
                           uint64_t id) {
  return batch_write({{&local_offset, 1}, {&remote_offset, 1}, {&bytes, 1}}, id);
}

StatusRef IoSession::batch_read(const IoRanges& ranges, uint64_t id) {
  return start(&Session::read, ranges, id);
}

StatusRef IoSession::batch_write(const IoRanges& ranges, uint64_t id) {
  return start(&Session::write, ranges, id);
}

StatusRef IoSession::start(Submit submit, const IoRanges& ranges, uint64_t id) {
  auto transfer = submit_checked(submit, ranges);
  if (!transfer.ok()) return failed_status(transfer.status());
  if (parts_.backend->config.enable_notification) notify_after(*transfer, id);
  auto status = std::make_shared<TransferStatus>();
  status->follow(*std::move(transfer));
  if (status->in_progress()) parts_.shared->in_flight.add(status);
  return status;
}

Result<Transfer> IoSession::submit_checked(Submit submit, const IoRanges& ranges) {
  SL_TRY(usable());
  SL_TRY(check_lengths(ranges));
  const uint64_t local_limit = parts_.local->desc.size;
  const uint64_t remote_limit = parts_.remote_memory.size;
  for (size_t i = 0; i < ranges.sizes.size(); ++i) {
    const uint64_t bytes = ranges.sizes[i];
    if (!inside(ranges.local_offsets[i], bytes, local_limit)) {
      return range_status("local", i, ranges.local_offsets[i], bytes, local_limit);
    }
    if (!inside(ranges.remote_offsets[i], bytes, remote_limit)) {
      return range_status("remote", i, ranges.remote_offsets[i], bytes, remote_limit);
    }
  }
  thread_local Rebased scratch;
  const RangeList list{
      .local_offsets = rebase(ranges.local_offsets, parts_.local->offset, scratch.local),
      .remote_offsets = rebase(ranges.remote_offsets, parts_.remote_offset, scratch.remote),
      .sizes = ranges.sizes};
  auto transfer = (session_.*submit)(list, Duration::zero());
  // Transfers that are over but were never looked at make room.
  if (transfer.status().reason() == Reason::kTooManyTransfers &&
      parts_.shared->in_flight.sweep() > 0) {
    transfer = (session_.*submit)(list, Duration::zero());
  }
  return transfer;
}

Status IoSession::usable() const {
  if (parts_.backend->removed.load()) {
    return {Reason::kInvalidState,
            fmt::format("backend {} has been removed", backend_name(parts_.backend->type))};
  }
  if (parts_.remote->dropped()) {
    return {Reason::kInvalidState,
            fmt::format("remote engine {} has been deregistered", parts_.remote->desc().key)};
  }
  if (parts_.local->removed.load()) {
    return {Reason::kNotRegistered,
            fmt::format("local memory {} has been deregistered", parts_.local->desc.id)};
  }
  return {};
}

void IoSession::notify_after(const Transfer& transfer, uint64_t id) {
  const Status sent = parts_.peer->notify(pack_inbound_notice(id, parts_.shared->key), transfer);
  if (sent.ok()) return;
  parts_.shared->notices_lost.fetch_add(1);
  log_failure("notice of a transfer to " + parts_.remote->desc().key, sent);
}

bool IoSession::alive() const {
  return usable().ok() && parts_.peer->phase() == PeerPhase::kConnected;
}

bool IoSession::broken() const {
  return !usable().ok() || parts_.peer->phase() == PeerPhase::kLost;
}

}  // namespace stagelink::moriio
