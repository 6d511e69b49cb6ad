// What the table does with each kind of message.
#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "connector/moriio/ports.h"
#include "connector/moriio/wrapper/transfer_table.h"

namespace stagelink::moriio {
namespace {

constexpr size_t kMaxParkedMessages = 1024;           // Of one transfer: one of each rank.
constexpr size_t kMaxParkedBytes = size_t{64} << 20;  // Of all transfers.

const MessageExtras& extras_of(const NotifyMessage& message) {
  static const MessageExtras kNone;
  return std::visit(
      [](const auto& value) -> const MessageExtras& {
        if constexpr (requires { value.extras; }) {
          return value.extras;
        } else {
          return kNone;
        }
      },
      message);
}

size_t bytes_of(const NotifyMessage& message) {
  size_t bytes = 512 + 2 * transfer_id(message).size();
  if (const auto* const blocks = std::get_if<RemoteBlocks>(&message)) {
    bytes += blocks->block_ids.size() * sizeof(int64_t);
    for (const auto& group : blocks->extras.block_groups) bytes += group.size() * sizeof(int64_t);
  }
  return bytes;
}

// Takes the same time wherever they differ.
bool same_secret(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

// The name under which a rank has reported; empty for one that does not tell.
std::string sender_of(const MessageExtras& extras) {
  if (extras.tp_rank) return fmt::format("rank {}", *extras.tp_rank);
  return extras.incarnation.value_or("");
}

// "reason: text", as our writer puts it.
Status failure_told(const MessageExtras& extras) {
  const std::string text = extras.status.value_or("");
  const std::string name = text.substr(0, text.find(':'));
  for (int i = 1; i < kReasonCount; ++i) {
    const Reason reason = static_cast<Reason>(i);
    if (reason_name(reason) == name) return {reason, "the producer says " + text};
  }
  return {Reason::kPeerLost, text.empty() ? "the producer gave up" : "the producer says " + text};
}

}  // namespace

void TransferTable::accept(const NotifyMessage& message) {
  if (!right_role(message)) return;
  const std::string& id = transfer_id(message);
  After after = After::kNothing;
  {
    MutexLock lock(mutex_);
    sweep(Clock::now());
    if (is_late(message, extras_of(message))) return;
    if (counts() && park(message)) return;
    after = apply(message);
  }
  tell(after, id);
}

bool TransferTable::right_role(const NotifyMessage& message) {
  const bool to_consumer =
      std::holds_alternative<WriteDone>(message) || std::holds_alternative<WriteFailed>(message);
  const bool to_either = std::holds_alternative<LegacyId>(message);
  if (to_either || options_.role == Role::kAny) return true;
  if (to_consumer == (options_.role == Role::kConsumer)) return true;
  rejects_.count(Reject::kWrongRole, message_type(message));
  return false;
}

bool TransferTable::is_late(const NotifyMessage& message, const MessageExtras& extras) {
  const std::string& id = transfer_id(message);
  const auto at = ended_.find(id);
  if (at == ended_.end()) return false;
  const bool blocks = std::holds_alternative<RemoteBlocks>(message);
  const std::string& before = at->second->incarnation;
  if (blocks && extras.incarnation && !before.empty() && *extras.incarnation != before) {
    forget_ended(id);  // Another life of the peer, which knows nothing of the transfer that ended.
    return false;
  }
  // Its caller counts repeated acknowledgements itself.
  if (!counts() && !blocks && !std::holds_alternative<WriteDone>(message)) return false;
  rejects_.count(blocks ? Reject::kLate : Reject::kDuplicate,
                 fmt::format("{} of {}, which has ended", message_type(message), id));
  return true;
}

// True if the message is not to be looked at now.
bool TransferTable::park(const NotifyMessage& message) {
  const std::string& id = transfer_id(message);
  if (std::holds_alternative<Renew>(message)) return false;  // Says nothing of an unknown transfer.
  const auto at = find_or_add(id);
  Record& record = at->second;
  if (record.expected) return false;
  list_unmatched(at);
  const size_t bytes = bytes_of(message);
  if (record.parked.size() >= kMaxParkedMessages) {
    rejects_.count(Reject::kFull, id);
    return true;
  }
  record.parked.push_back(message);
  record.parked_bytes += bytes;
  parked_bytes_ += bytes;
  while (parked_bytes_ > kMaxParkedBytes && !unmatched_.empty()) {
    rejects_.count(Reject::kFull, unmatched_.front());
    erase(records_.find(unmatched_.front()));
  }
  return true;
}

TransferTable::After TransferTable::apply(const NotifyMessage& message) {
  // A message before this one may have ended the transfer.
  if (counts() && is_late(message, extras_of(message))) return After::kNothing;
  const std::string& id = transfer_id(message);
  if (const auto at = records_.find(id); at != records_.end()) {
    const std::string what = fmt::format("{} of {}", message_type(message), id);
    if (!may_speak(at->second, extras_of(message), what)) return After::kNothing;
  }
  if (const auto* const blocks = std::get_if<RemoteBlocks>(&message)) return accept_blocks(*blocks);
  if (const auto* const release = std::get_if<Release>(&message)) return accept_release(*release);
  if (const auto* const done = std::get_if<WriteDone>(&message)) return accept_write_done(*done);
  if (const auto* const failed = std::get_if<WriteFailed>(&message)) {
    return accept_write_failed(*failed);
  }
  if (const auto* const renew = std::get_if<Renew>(&message)) return accept_renew(*renew);
  return accept_legacy(std::get<LegacyId>(message));
}

bool TransferTable::may_speak(const Record& record, const MessageExtras& extras,
                              const std::string& what) {
  const Expectation& expectation = record.expectation;
  if (expectation.token.empty()) return true;
  if (extras.token ? same_secret(*extras.token, expectation.token) : !expectation.token_required) {
    return true;
  }
  rejects_.count(Reject::kToken, what);
  return false;
}

TransferTable::After TransferTable::accept_blocks(const RemoteBlocks& message) {
  const auto at = find_or_add(message.transfer_id);
  Record& record = at->second;
  if (record.writing) {
    const bool same = record.allocation->block_ids == message.block_ids;
    rejects_.count(same ? Reject::kDuplicate : Reject::kWriting,
                   fmt::format("remote_blocks of {}, which is being written", message.transfer_id));
    return After::kNothing;
  }
  record.allocation = std::make_shared<const Allocation>(
      Allocation{message.request_id, message.block_ids, message.decode_rank, message.extras});
  if (!record.expected) list_unmatched(at);
  return After::kAllocated;
}

TransferTable::After TransferTable::accept_release(const Release& message) {
  const std::string& id = message.transfer_id;
  if (!counts()) {
    const auto at = records_.find(id);
    // The writer stops, and gives the acknowledgement when it has.
    if (at != records_.end() && at->second.writing) return After::kReleased;
    if (at != records_.end()) erase(at);
    if (!ended_.contains(id)) remember_ended(id, message.extras.incarnation.value_or(""));
    queue_ack({id, message.consumer_tp_size});
    return After::kReleased;
  }
  Record& record = find_or_add(id)->second;
  uint32_t needed = record.expectation.messages;
  if (needed == 0) {
    const auto counted = expected_ack_count(options_.tp_size, message.consumer_tp_size);
    if (!counted.ok()) {
      rejects_.count(Reject::kBadField, counted.status().message());
      return After::kNothing;
    }
    needed = *counted;
  }
  if (!count_report(record, message.extras, id)) return After::kNothing;
  return record.reports >= needed ? After::kReleased : After::kNothing;
}

TransferTable::After TransferTable::accept_write_done(const WriteDone& message) {
  const std::string& id = message.transfer_id;
  if (counts()) {
    Record& record = find_or_add(id)->second;
    uint32_t needed = record.expectation.messages;
    if (needed == 0) needed = message.extras.writes.value_or(1);
    if (!count_report(record, message.extras, id) || record.reports < needed) {
      return After::kNothing;
    }
  }
  end_locked(EventKind::kReceived, id, {});
  return After::kNothing;
}

TransferTable::After TransferTable::accept_write_failed(const WriteFailed& message) {
  end_locked(EventKind::kReceived, message.transfer_id, failure_told(message.extras));
  return After::kNothing;
}

TransferTable::After TransferTable::accept_renew(const Renew& message) {
  const auto at = records_.find(message.transfer_id);
  if (at == records_.end() || !at->second.expected) return After::kNothing;
  if (!std::exchange(at->second.renewed, true)) {
    events_.push_back({EventKind::kRenewed, message.transfer_id, {}});
  }
  return After::kNothing;
}

TransferTable::After TransferTable::accept_legacy(const LegacyId& message) {
  if (options_.role == Role::kProducer) return accept_release({message.id, 1, {}});
  return accept_write_done({message.id, {}});
}

bool TransferTable::count_report(Record& record, const MessageExtras& extras,
                                 const std::string& transfer_id) {
  if (const std::string sender = sender_of(extras); !sender.empty()) {
    if (std::find(record.heard.begin(), record.heard.end(), sender) != record.heard.end()) {
      rejects_.count(Reject::kDuplicate, fmt::format("{} of {}", sender, transfer_id));
      return false;
    }
    if (record.heard.size() >= kMaxTpSize) return false;
    record.heard.push_back(sender);
  }
  ++record.reports;
  return true;
}

}  // namespace stagelink::moriio
