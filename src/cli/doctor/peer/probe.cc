#include "cli/doctor/peer/probe.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/random.h"
#include "base/text.h"
#include "transport/blocking_frames.h"
#include "wire/frame.h"

namespace stagelink::cli::doctor {
namespace {

using Clock = std::chrono::steady_clock;

// What a listener that speaks first says within this time after the connect, and three times the
// time that the connect took.
constexpr auto kListenTime = std::chrono::milliseconds(150);
constexpr int kPings = 21;
constexpr size_t kGreetingBytes = 64;  // Of ZeroMQ's protocol (ZMTP 3).

bool wait_readable(int fd, const Deadline& deadline) {
  for (;;) {
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&waiting, 1, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0;
  }
}

// Looks at what has come without taking it.
std::string peek(int fd, size_t bytes) {
  std::string text(bytes, '\0');
  const ssize_t got = ::recv(fd, text.data(), text.size(), MSG_PEEK | MSG_DONTWAIT);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

std::string numeric(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port,
                    sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  const auto number = parse_integer(port);
  return Endpoint{host, static_cast<uint16_t>(number.ok() ? *number : 0)}.to_string();
}

void note_ends(int fd, PeerFacts& facts) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    facts.local = numeric(address, size);
  }
  size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    facts.remote = numeric(address, size);
  }
  const bool ipv6 = address.ss_family == AF_INET6;
  socklen_t mtu_size = sizeof facts.path_mtu;
  if (::getsockopt(fd, ipv6 ? int{IPPROTO_IPV6} : int{IPPROTO_IP}, ipv6 ? IPV6_MTU : IP_MTU,
                   &facts.path_mtu, &mtu_size) != 0) {
    facts.path_mtu = 0;
  }
}

bool is_zmq_signature(std::string_view bytes) {
  return bytes.size() >= 10 && bytes[0] == '\xff' && bytes[9] == '\x7f';
}

bool is_frame(std::string_view bytes) {
  uint32_t magic = 0;
  if (bytes.size() < sizeof magic) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == wire::kFrameMagic;
}

// Says as much as makes the other side tell the rest of its greeting, and not which mechanism we
// have: so it has nothing to refuse.
void hear_zmq(int fd, PeerFacts& facts, const Deadline& deadline) {
  facts.answer = Answer::kZmq;
  constexpr std::array<char, 11> kOpening = {'\xff', 0, 0, 0, 0, 0, 0, 0, 0, '\x7f', 3};
  (void)::send(fd, kOpening.data(), kOpening.size(), MSG_NOSIGNAL);
  std::string greeting;
  while (greeting.size() < kGreetingBytes && wait_readable(fd, deadline)) {
    std::array<char, kGreetingBytes> buffer;
    const ssize_t got = ::recv(fd, buffer.data(), kGreetingBytes - greeting.size(), 0);
    if (got <= 0) break;
    greeting.append(buffer.data(), static_cast<size_t>(got));
  }
  if (greeting.size() > 10) facts.zmq.major = static_cast<unsigned char>(greeting[10]);
  if (greeting.size() < kGreetingBytes) return;
  facts.zmq.minor = static_cast<unsigned char>(greeting[11]);
  const std::string mechanism = greeting.substr(12, 20);
  facts.zmq.mechanism = to_plain_text(mechanism.substr(0, mechanism.find('\0')), 20);
}

// The handshake of an engine, and pings.
class EngineTalk {
 public:
  EngineTalk(int fd, const ProbeOptions& options, PeerFacts& facts)
      : fd_(fd), options_(options), facts_(facts) {}

  void run() {
    facts_.answer = Answer::kEngine;
    facts_.greeted = greet();
    if (facts_.greeted.ok()) ping();
    if (facts_.welcome.has_value()) (void)send(wire::FrameType::kBye, {});
  }

 private:
  Deadline deadline() const { return Deadline::in(options_.timeout); }
  Status send(wire::FrameType type, std::span<const std::byte> payload, uint64_t request = 0) {
    return transport::send_frame(fd_, type, request, payload, deadline());
  }

  static std::vector<std::byte> hello(bool authenticates) {
    wire::Hello hello;
    hello.version = wire::own_version();
    hello.role = wire::Role::kControl;
    hello.instance = random_instance_id();
    hello.pid = static_cast<uint32_t>(::getpid());
    hello.name = "stagelink doctor";
    hello.authenticates = authenticates;
    if (authenticates) hello.nonce = wire::random_nonce();
    return wire::encode(hello);
  }

  Status greet() {
    const auto said = hello(options_.key != nullptr);
    const Status sent = send(wire::FrameType::kHello, said);
    if (!sent.ok() && sent.reason() != Reason::kConnectionCut) return sent;
    if (!wait_readable(fd_, deadline()) && !hear_line()) {
      facts_.answer = Answer::kSilent;
      return Status(Reason::kConnectTimeout, "no answer to our hello");
    }
    if (!looks_like_frame()) return Status(Reason::kFrame, "the answer is no frame of ours");
    SL_ASSIGN(auto answer, transport::receive_frame(fd_, deadline()));
    if (answer.header.type == wire::FrameType::kChallenge) {
      SL_TRY(prove(said, answer));
      SL_ASSIGN(answer, transport::receive_frame(fd_, deadline()));
    } else if (answer.header.type == wire::FrameType::kWelcome && options_.key != nullptr) {
      return Status(Reason::kAuthentication,
                    "this side has a secret (secret_file), and the peer asks for none");
    }
    return hear(answer);
  }

  // Servers of lines, such as HTTP, wait for the end of one.
  bool hear_line() const {
    constexpr std::string_view kEnd = "\r\n\r\n";
    (void)::send(fd_, kEnd.data(), kEnd.size(), MSG_NOSIGNAL);
    return wait_readable(fd_, Deadline::in(kListenTime));
  }

  // Else it is somebody else's protocol, of which some is shown, or the connection's end.
  bool looks_like_frame() {
    const std::string begin = peek(fd_, 200);
    if (is_frame(begin)) return true;
    facts_.answer = Answer::kOther;
    facts_.prompted = true;
    facts_.said = to_plain_text(begin.substr(0, begin.find_first_of("\r\n")), 80);
    return false;
  }

  Status prove(std::span<const std::byte> said, const transport::ReceivedFrame& answer) {
    if (options_.key == nullptr) {
      return Status(Reason::kAuthentication,
                    "the peer has a secret (secret_file), and this side has none");
    }
    SL_ASSIGN(const wire::Challenge challenge, wire::decode_challenge(answer.payload));
    if (!options_.key->verify(challenge.proof, wire::Side::kOwner, said, challenge.nonce)) {
      return Status(Reason::kAuthentication, "the peer has another secret (secret_file)");
    }
    const wire::Proof proof = options_.key->prove(wire::Side::kInitiator, said, challenge.nonce);
    return send(wire::FrameType::kProof, wire::encode_proof(proof));
  }

  Status hear(const transport::ReceivedFrame& answer) {
    if (answer.header.type == wire::FrameType::kRefuse) {
      SL_ASSIGN(const wire::Outcome outcome, wire::decode_outcome(answer.payload));
      if (outcome.reason == Reason::kVersion) facts_.version = version_in_refusal(outcome.message);
      const Reason reason = outcome.reason == Reason::kOk ? Reason::kRefused : outcome.reason;
      return Status(reason, outcome.message);
    }
    if (answer.header.type != wire::FrameType::kWelcome) {
      return Status(Reason::kFrame, fmt::format("a {} frame in place of a welcome",
                                                wire::frame_name(answer.header.type)));
    }
    ByteReader reader(answer.payload);
    const auto major = reader.get<uint16_t>();
    const wire::Version version{major, reader.get<uint16_t>()};
    if (reader.ok()) facts_.version = version;
    SL_ASSIGN(facts_.welcome, wire::decode_welcome(answer.payload));
    return {};
  }

  void ping() {
    std::vector<Duration> times;
    const Deadline end = deadline();
    for (uint64_t request = 1; request <= kPings && !end.passed(); ++request) {
      const auto start = Clock::now();
      if (!send(wire::FrameType::kPing, {}, request).ok()) return;
      for (;;) {
        auto answer = transport::receive_frame(fd_, end);
        if (!answer.ok()) return;
        // Pings of its own may come in between.
        if (answer->header.type == wire::FrameType::kPong && answer->header.request_id == request) {
          break;
        }
      }
      times.push_back(Clock::now() - start);
    }
    if (times.empty()) return;
    std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
    facts_.round_trip = times[times.size() / 2];
  }

  const int fd_;
  const ProbeOptions& options_;
  PeerFacts& facts_;
};

// Empty unless `text` begins with "<number>.<number>".
std::optional<wire::Version> leading_version(std::string_view text) {
  unsigned major = 0;
  unsigned minor = 0;
  const std::string words(text.substr(0, 20));
  if (std::sscanf(words.c_str(), "%5u.%5u", &major, &minor) != 2) return std::nullopt;
  if (major > UINT16_MAX || minor > UINT16_MAX) return std::nullopt;
  return wire::Version{static_cast<uint16_t>(major), static_cast<uint16_t>(minor)};
}

}  // namespace

std::optional<wire::Version> version_in_refusal(std::string_view message) {
  constexpr std::string_view kMark = "we speak ";  // As check_version() has it.
  const size_t at = message.rfind(kMark);
  if (at == std::string_view::npos) return std::nullopt;
  return leading_version(message.substr(at + kMark.size()));
}

PeerFacts probe_peer(const Endpoint& endpoint, const ProbeOptions& options) {
  PeerFacts facts;
  const auto start = Clock::now();
  auto fd = transport::connect_tcp(endpoint.host, endpoint.port, Deadline::in(options.timeout));
  facts.connect_time = Clock::now() - start;
  facts.connected = fd.status();
  if (!fd.ok()) return facts;
  note_ends(fd->get(), facts);
  if (!options.speak) return facts;
  const Duration listen = std::max<Duration>(kListenTime, 3 * facts.connect_time);
  if (!wait_readable(fd->get(), Deadline::in(std::min(listen, options.timeout)))) {
    EngineTalk(fd->get(), options, facts).run();
    return facts;
  }
  const std::string begin = peek(fd->get(), 80);
  if (is_zmq_signature(begin)) {
    hear_zmq(fd->get(), facts, Deadline::in(options.timeout));
  } else if (is_frame(begin)) {  // An engine that refuses us unheard.
    EngineTalk(fd->get(), options, facts).run();
  } else {
    facts.answer = Answer::kOther;
    facts.said = to_plain_text(begin.substr(0, begin.find_first_of("\r\n")), 80);
  }
  return facts;
}

}  // namespace stagelink::cli::doctor
