#include "cli/replay/halves/meeting.h"

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <poll.h>

#include "base/text.h"
#include "cli/replay/halves/sockets.h"
#include "cli/replay/interrupt.h"

namespace stagelink::cli::replay {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr auto kGuestTimeout = std::chrono::seconds(5);
constexpr auto kConnectTimeout = std::chrono::seconds(2);
constexpr auto kPause = std::chrono::milliseconds(200);

Status interrupted() { return Status(Reason::kCancelled, "interrupted"); }

void sleep_for(Duration pause) { ::poll(nullptr, 0, Deadline::in(pause).left_ms()); }

std::string shown(const Json& value) {
  return escape_control(value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80));
}

std::string text_of(const Json& message, const char* name) {
  const auto found = message.find(name);
  return found != message.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// The first term that differs, with both values; empty if none does.
std::string difference(const Json& ours, const Json& theirs) {
  for (const auto& [name, value] : ours.items()) {
    const Json other = theirs.is_object() && theirs.contains(name) ? theirs[name] : Json();
    if (other != value)
      return fmt::format("{}: {} here, {} there", name, shown(value), shown(other));
  }
  return {};
}

// The next message, which must be `event`.
Result<Json> expect(ControlChannel& channel, const char* event, const Deadline& deadline) {
  for (;;) {
    channel.flush();
    channel.fill();
    SL_ASSIGN(auto message, channel.next());
    if (message) {
      if (message->at("event") == event) return *std::move(message);
      const bool refused = message->at("event") == "refused";
      return Status(refused ? Reason::kIncompatible : Reason::kFrame,
                    refused ? escape_control(text_of(*message, "message").substr(0, 400))
                            : fmt::format("{} came instead of {}", shown(*message), event));
    }
    if (channel.ended()) return Status(Reason::kConnectionCut, "the connection has ended");
    if (deadline.passed()) return Status(Reason::kTimedOut, fmt::format("no {} came", event));
    if (InterruptGuard::interrupted()) return interrupted();
    const short events = channel.wants_write() ? POLLIN | POLLOUT : POLLIN;
    pollfd entry{.fd = channel.fd(), .events = events, .revents = 0};
    ::poll(&entry, 1, std::min(deadline.left_ms(), 200));
  }
}

Status no_secret_there() {
  return Status(Reason::kAuthentication,
                "this half has a secret (--secret-file), the other has none");
}

Status wrong_proof() {
  return Status(Reason::kAuthentication, "the other half has another secret (--secret-file)");
}

// The listening half's side of the proof. `hello` has come already.
Status check_guest(ControlChannel& channel, const HalfProof& proof, const Json& hello,
                   const Deadline& deadline) {
  const bool has_nonce = !text_of(hello, "nonce").empty();
  if (!proof.has_secret()) {
    if (!has_nonce) return {};
    return Status(Reason::kAuthentication, "the other half has a secret, this one has none");
  }
  if (!has_nonce) return no_secret_there();
  const std::string text = hello.dump();
  const wire::Nonce nonce = wire::random_nonce();
  channel.send({{"event", "challenge"},
                {"nonce", nonce_text(nonce)},
                {"proof", proof.prove(wire::Side::kOwner, text, nonce)}});
  SL_ASSIGN(const Json answer, expect(channel, "proof", deadline));
  const bool right = proof.verify(text_of(answer, "proof"), wire::Side::kInitiator, text, nonce);
  return right ? Status() : wrong_proof();
}

// The connecting half's side.
Status prove_to(ControlChannel& channel, const HalfProof& proof, const Json& hello,
                const Deadline& deadline) {
  if (!proof.has_secret()) return {};
  const std::string text = hello.dump();
  SL_ASSIGN(const Json challenge, expect(channel, "challenge", deadline));
  SL_ASSIGN(const wire::Nonce nonce, nonce_from(text_of(challenge, "nonce")));
  if (!proof.verify(text_of(challenge, "proof"), wire::Side::kOwner, text, nonce)) {
    return wrong_proof();
  }
  channel.send({{"event", "proof"}, {"proof", proof.prove(wire::Side::kInitiator, text, nonce)}});
  return {};
}

Status welcome_guest(ControlChannel& channel, const Meeting& meeting) {
  const Deadline deadline = Deadline::in(kGuestTimeout);
  SL_ASSIGN(const Json hello, expect(channel, "hello", deadline));
  if (hello.value("version", Json()) != Json(kVersion)) {
    return Status(Reason::kVersion, fmt::format("replay version {} here, {} there", kVersion,
                                                shown(hello.value("version", Json()))));
  }
  SL_TRY(check_guest(channel, meeting.proof, hello, deadline));
  SL_ASSIGN(const Json terms, expect(channel, "terms", deadline));
  const std::string differs = difference(meeting.terms, terms.value("terms", Json()));
  if (!differs.empty()) {
    return Status(Reason::kIncompatible, "the halves have different options: " + differs);
  }
  channel.send({{"event", "welcome"}});
  return {};
}

// A channel if the guest is the other half. Otherwise it has been told why, and so has the user.
std::optional<ControlChannel> admit(Guest guest, const Meeting& meeting, Status& last) {
  const Result<bool> expected = is_of_host(guest.address, meeting.peer.host);
  if (!expected.ok() || !*expected) {
    last = Status(Reason::kPermission,
                  fmt::format("a guest from {} is not --peer {}", guest.text, meeting.peer.host));
    std::cerr << "warning: " << last.message() << "\n";
    return {};
  }
  ControlChannel channel(std::move(guest.socket), kMaxHalfLineBytes);
  last = welcome_guest(channel, meeting);
  if (last.ok()) return channel;
  channel.send({{"event", "refused"}, {"message", std::string(last.message())}});
  std::cerr << "warning: refused a guest from " << guest.text << ": " << last.message() << "\n";
  return {};
}

Result<ControlChannel> greet(UniqueFd socket, const Meeting& meeting) {
  const Deadline deadline = Deadline::in(kGuestTimeout);
  ControlChannel channel(std::move(socket), kMaxHalfLineBytes);
  Json hello = {{"event", "hello"}, {"version", kVersion}};
  if (meeting.proof.has_secret()) hello["nonce"] = nonce_text(wire::random_nonce());
  channel.send(hello);
  SL_TRY(prove_to(channel, meeting.proof, hello, deadline));
  channel.send({{"event", "terms"}, {"terms", meeting.terms}});
  SL_TRY(expect(channel, "welcome", deadline).status());
  return channel;
}

// Trying again cannot help.
bool is_final(const Status& status) noexcept {
  return status.code() == Code::kIncompatible || status.code() == Code::kPermission ||
         status.code() == Code::kInvalidArgument || status.code() == Code::kCancelled;
}

Status too_late(const char* half, const std::string& where, const Meeting& meeting,
                const Status& last) {
  const auto seconds = std::chrono::duration<double>(meeting.timeout).count();
  return Status(Reason::kTimedOut,
                fmt::format("the {} half {} within {:g} s{}{}", half, where, seconds,
                            last.ok() ? "" : "; the last try: ", last.message()));
}

}  // namespace

Result<ControlChannel> wait_for_decode(const Meeting& meeting) {
  SL_ASSIGN(const UniqueFd listener, listen_at(meeting.bind));
  const Deadline deadline = Deadline::in(meeting.timeout);
  Status last;
  while (!deadline.passed()) {
    if (InterruptGuard::interrupted()) return interrupted();
    pollfd entry{.fd = listener.get(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, std::min(deadline.left_ms(), 200)) <= 0) continue;
    Result<Guest> guest = take_guest(listener.get());
    if (!guest.ok()) {
      last = guest.status();
      sleep_for(kPause);
      continue;
    }
    std::optional<ControlChannel> channel = admit(*std::move(guest), meeting, last);
    if (channel) return *std::move(channel);
  }
  return too_late("decode", "did not come to " + meeting.bind.to_string(), meeting, last);
}

Result<ControlChannel> go_to_prefill(const Meeting& meeting) {
  const Deadline deadline = Deadline::in(meeting.timeout);
  Status last;
  while (!deadline.passed()) {
    if (InterruptGuard::interrupted()) return interrupted();
    const Deadline soon = Deadline::earlier(Deadline::in(kConnectTimeout), deadline);
    Result<UniqueFd> socket = connect_from(meeting.bind, meeting.peer, soon);
    last = socket.status();
    if (socket.ok()) {
      Result<ControlChannel> channel = greet(*std::move(socket), meeting);
      if (channel.ok()) return channel;
      last = channel.status();
    }
    if (is_final(last)) return last;
    sleep_for(kPause);
  }
  return too_late("prefill", "did not answer at " + meeting.peer.to_string(), meeting, last);
}

}  // namespace stagelink::cli::replay
