#include <cstdint>
#include <cstdlib>
#include <map>
#include <string_view>

#include "connector/encoder_cache/push/reservation_table.h"

namespace ec = stagelink::encoder_cache;

namespace {

using Table = ec::ReservationTable;

// What was answered last: a message cannot know a ticket, so those that are right come from here.
struct Tickets {
  std::map<std::string, ec::Ticket> known;
};

struct Say {
  Table& table;
  Table::Aftermath& after;
  Tickets& tickets;
  Table::Time now;
  bool is_honest;

  void operator()(ec::ReserveAsk ask) const {
    const auto known = tickets.known.find(ask.transfer_id);
    if (is_honest && known != tickets.known.end()) ask.ticket = known->second;
    table.reserve(
        ask,
        [&tickets = tickets, name = ask.transfer_id](const auto& result) {
          if (result.ok() && !(*result).cancelled) tickets.known[name] = (*result).ticket;
        },
        now, after);
  }
  void operator()(ec::CompleteAsk ask) const {
    if (is_honest) ask.ticket = tickets.known[ask.transfer_id];
    table.complete(
        ask, [](const auto&) {}, now, after);
  }
  void operator()(ec::CancelAsk ask) const {
    if (is_honest) ask.ticket = tickets.known[ask.transfer_id];
    (void)table.cancel(ask, after);
  }
  void operator()(const ec::StatusAsk& ask) const {
    (void)table.status(ask.transfer_id);
    table.refuse(ask.transfer_id, after);
  }
};

// What a desk does behind each call; `luck` says how it goes.
void follow(Table& table, Table::Aftermath& after, Table::Time now, uint8_t luck) {
  const auto outcome = [&] {
    return (luck & 1) != 0 ? stagelink::Status()
                           : stagelink::Status(stagelink::Reason::kPeerLost, "gone");
  };
  for (int round = 0; round < 64; ++round) {
    const Table::Aftermath work = std::exchange(after, {});
    for (const auto& answer : work.answers) answer();
    for (const auto& arrival : work.to_room) {
      const auto status = outcome();
      table.room_found(arrival,
                       status.ok()
                           ? stagelink::Result<stagelink::pull::Piece>(stagelink::pull::Piece())
                           : stagelink::Result<stagelink::pull::Piece>(status),
                       now, after);
    }
    for (const auto& arrival : work.to_read) table.read_ended(arrival, outcome(), now, after);
    if (work.answers.empty() && work.to_room.empty() && work.to_read.empty()) return;
    luck = static_cast<uint8_t>(luck >> 1 | luck << 7);
  }
}

// Whatever is decoded can be said again, and is the same then.
void say_again(const ec::PushAsk& ask) {
  uint64_t id = 0;
  const auto again = ec::decode_push(ec::encode_push(9, ask), id);
  if (!again.ok() || id != 9 || again.status().ok() != (*again).items.front().ok()) std::abort();
  if ((*(*again).items.front()).index() != ask.index()) std::abort();
}

}  // namespace

// Lines of messages, each behind a byte that says how what it begins goes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  (void)ec::decode_reply(rest);
  Table table({.reservations = 8, .ended = 4});
  Table::Aftermath after;
  Tickets tickets;
  Table::Time now{};
  while (!rest.empty()) {
    const auto luck = static_cast<uint8_t>(rest.front());
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(1, end == rest.npos ? rest.npos : end - 1);
    rest = end == rest.npos ? std::string_view() : rest.substr(end + 1);
    uint64_t id = 0;
    if (const auto message = ec::decode_push(line, id); message.ok()) {
      for (const auto& item : (*message).items) {
        if (!item.ok()) continue;
        say_again(*item);
        std::visit(Say{table, after, tickets, now, (luck & 2) != 0}, *item);
      }
    }
    follow(table, after, now, luck);
    now += std::chrono::seconds(luck);
    table.expire(now, after);
    follow(table, after, now, luck);
    const ec::PushUsage usage = table.usage();
    if (usage.reservations > 8 || usage.ended > 4 || usage.queued > usage.arrivals) std::abort();
  }
  table.close(after);
  follow(table, after, now, 0);
  const ec::PushUsage usage = table.usage();
  if (usage.reservations + usage.arrivals + usage.idle + usage.queued != 0) std::abort();
  return 0;
}
