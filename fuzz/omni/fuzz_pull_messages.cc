#include <cstdint>
#include <cstdlib>
#include <memory>

#include "connector/pull/messages/messages.h"
#include "connector/pull/messages/omni_messages.h"
#include "connector/pull/sender/desk.h"

namespace {

using namespace stagelink;
using namespace stagelink::pull;

void require(bool holds) {
  if (!holds) std::abort();
}

// What can be decoded is encoded to something that decodes to the same.
template <typename M, typename Same>
void round_trip(MessageSpan in, Same&& same) {
  M first;
  if (!decode(in, first).ok()) return;
  Message out;
  encode(first, out);
  M second;
  require(decode(out, second).ok() && same(first, second));
}

void decode_all(MessageSpan in) {
  round_trip<HelloMessage>(in,
                           [](const auto& a, const auto& b) { return a.receiver == b.receiver; });
  round_trip<WelcomeMessage>(in, [](const auto& a, const auto& b) {
    return a.life == b.life && a.pool == b.pool && a.socket_path == b.socket_path &&
           a.engine == b.engine;
  });
  round_trip<ClaimMessage>(
      in, [](const auto& a, const auto& b) { return a.entries.size() == b.entries.size(); });
  round_trip<ReleaseMessage>(in,
                             [](const auto& a, const auto& b) { return a.entries == b.entries; });
  round_trip<Denial>(in, [](const auto& a, const auto& b) { return a.reason == b.reason; });
  Grant grant;
  if (decode(in, grant).ok()) {
    Message out;
    encode_grant(grant, encode_body(grant.body), out);
    Grant again;
    require(decode(out, again).ok() && again.body == grant.body);
  }
  std::vector<MessageSpan> answers;
  if (decode_answers(in, answers).ok()) {
    Message out;
    begin_answers(out);
    for (const MessageSpan answer : answers) require(add_answer(answer, out));
    std::vector<MessageSpan> again;
    require(decode_answers(out, again).ok() && again.size() == answers.size());
  }
  if (const auto info = read_omni_info(in); info.ok()) {
    const auto again = read_omni_info(omni_info(*info));
    require(again.ok() && (*again).lengths == (*info).lengths);
  }
}

struct Counting final : Asker {
  bool answer(MessageSpan message) noexcept override {
    require(message.size() <= kMaxMessageBytes);
    ++answers;
    return true;
  }
  int answers = 0;
};

// A sender with one payload, asked by whoever sends the input. It holds no more than it may.
void ask_sender(MessageSpan in) {
  OfferTable table({.max_waiting = 8}, std::make_shared<RoomSignal>());
  Desk::Settings settings;
  settings.welcome.life = {1, 2};
  settings.claim_timeout = std::chrono::seconds(1);
  settings.compat_030 = true;
  settings.rpc_port = 1;
  Desk desk(table, settings);
  auto body = std::make_shared<OfferBody>();
  body->generation = 7;
  body->bytes = 16;
  body->addresses = {4096};
  body->lengths = {16};
  body->grant = encode_body({7, 16, 0, true, {}, {{kPoolRegion, 0, 16}}});
  OfferTable::Outcomes woken;
  require(table.put("k", std::move(body), {}, woken, Deadline::Clock::now()).ok());
  const auto asker = std::make_shared<Counting>();
  desk.handle(in, asker, true);
  desk.handle(in, asker, false);
  const TableUsage usage = table.usage();
  require(usage.waiting <= 8 && usage.claims <= 2 * kMaxClaimEntries);
  table.drop(*asker);
  require(table.usage().claims == 0 && table.usage().waiting == 0);
}

}  // namespace

// Any bytes at both doors of a sender, and as a sender's answer.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MessageSpan in(reinterpret_cast<const std::byte*>(data), size);
  const auto type = message_type(in);
  require(!type.ok() || is_pull_message(in));
  decode_all(in);
  (void)read_omni_request(in);
  ask_sender(in);
  return 0;
}
