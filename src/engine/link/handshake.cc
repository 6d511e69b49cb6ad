#include "engine/link/handshake.h"

#include <utility>

#include <unistd.h>

#include "engine/core.h"
#include "transport/blocking_frames.h"

namespace stagelink::engine {
namespace {

wire::Hello hello_of(const EngineCore& core, wire::Role role, InstanceId target) {
  wire::Hello hello;
  hello.version = wire::own_version();
  hello.role = role;
  hello.instance = core.instance();
  hello.target = target;
  hello.host = core.host();
  hello.pid = static_cast<uint32_t>(::getpid());
  hello.name = core.options().name;
  hello.wants_checks = core.options().checksum;
  hello.may_stage = role == wire::Role::kData && !hello.wants_checks;
  hello.authenticates = core.auth_key() != nullptr;
  if (hello.authenticates) hello.nonce = wire::random_nonce();
  return hello;
}

Status refusal(std::span<const std::byte> payload) {
  auto outcome = wire::decode_outcome(payload);
  if (!outcome.ok()) return outcome.status();
  const Reason reason = outcome->reason == Reason::kOk ? Reason::kRefused : outcome->reason;
  return Status(reason, "refused by the peer: " + outcome->message);
}

// Both sides prove that they hold one secret, the owner first. Ok: the welcome, or a refusal, is
// the next frame.
Status authenticate(const wire::AuthKey& key, int fd, std::span<const std::byte> hello,
                    const transport::ReceivedFrame& answer, const Deadline& deadline) {
  if (answer.header.type != wire::FrameType::kChallenge) {
    return Status(Reason::kAuthentication,
                  "this engine has a secret (option secret_file), and the peer asks for none");
  }
  SL_ASSIGN(const wire::Challenge challenge, wire::decode_challenge(answer.payload));
  if (!key.verify(challenge.proof, wire::Side::kOwner, hello, challenge.nonce)) {
    Status wrong(Reason::kAuthentication, "the peer's proof is wrong: it has another secret");
    const wire::Outcome outcome{wrong.reason(), std::string(wrong.message())};
    (void)transport::send_frame(fd, wire::FrameType::kRefuse, 0, wire::encode(outcome), deadline);
    return wrong;
  }
  const wire::Proof proof = key.prove(wire::Side::kInitiator, hello, challenge.nonce);
  return transport::send_frame(fd, wire::FrameType::kProof, 0, wire::encode_proof(proof), deadline);
}

// The owner's answer to our hello: a welcome or a refusal. Nothing of it is used before the owner
// has proved itself, if we have a secret.
Result<transport::ReceivedFrame> receive_answer(const EngineCore& core, int fd,
                                                std::span<const std::byte> hello,
                                                const Deadline& deadline) {
  SL_ASSIGN(auto answer, transport::receive_frame(fd, deadline));
  if (answer.header.type == wire::FrameType::kRefuse) return answer;
  if (core.auth_key() != nullptr) {
    SL_TRY(authenticate(*core.auth_key(), fd, hello, answer, deadline));
    return transport::receive_frame(fd, deadline);
  }
  if (answer.header.type == wire::FrameType::kChallenge) {
    return Status(Reason::kAuthentication,
                  "the peer has a secret (option secret_file), and this engine has none");
  }
  return answer;
}

}  // namespace

Result<Greeted> greet(const EngineCore& core, int fd, wire::Role role, InstanceId target,
                      const Deadline& deadline) {
  const auto hello = wire::encode(hello_of(core, role, target));
  const Status sent = transport::send_frame(fd, wire::FrameType::kHello, 0, hello, deadline);
  // A peer that refuses at once has closed before our hello, and its reason waits to be read.
  if (!sent.ok() && sent.reason() != Reason::kConnectionCut) return sent;
  auto frame = receive_answer(core, fd, hello, deadline);
  if (!frame.ok()) return sent.ok() ? frame.status() : sent;
  if (frame->header.type == wire::FrameType::kRefuse) return refusal(frame->payload);
  if (frame->header.type != wire::FrameType::kWelcome) {
    return Status(Reason::kFrame, "the answer to our hello is no welcome");
  }
  SL_ASSIGN(wire::Welcome welcome, wire::decode_welcome(frame->payload));
  if (target != InstanceId{} && welcome.instance != target) {
    return Status(Reason::kRestarted, "instance " + target.to_string() + " is gone; " +
                                          welcome.instance.to_string() +
                                          " answers in its place: take its new descriptor");
  }
  return Greeted{std::move(welcome), std::move(frame->fds)};
}

}  // namespace stagelink::engine
