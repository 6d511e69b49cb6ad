#include "engine/link/owner_handshake.h"

#include <utility>

#include "wire/frame.h"

namespace stagelink::engine {
namespace {

Status unauthenticated(const char* why) { return Status(Reason::kAuthentication, why); }

}  // namespace

size_t OwnerHandshake::wanted() const noexcept {
  if (done()) return 0;
  if (input_.size() < wire::kFrameHeaderBytes) return wire::kFrameHeaderBytes - input_.size();
  return wire::kFrameHeaderBytes + payload_bytes_ - input_.size();
}

Result<std::optional<wire::Challenge>> OwnerHandshake::take(std::span<const std::byte> bytes) {
  using Answer = std::optional<wire::Challenge>;
  begun_ = begun_ || !bytes.empty();
  input_.insert(input_.end(), bytes.begin(), bytes.end());
  if (input_.size() == wire::kFrameHeaderBytes) SL_TRY(read_header());
  if (wanted() > 0) return Answer();
  const std::vector<std::byte> frame = std::exchange(input_, {});
  const auto payload = std::span(frame).subspan(wire::kFrameHeaderBytes);
  if (step_ == Step::kHello) return take_hello(payload);
  SL_TRY(take_proof(payload));
  step_ = Step::kDone;
  return Answer();
}

Status OwnerHandshake::read_header() {
  const std::span<const std::byte> raw(input_);
  SL_ASSIGN(const wire::FrameHeader header,
            wire::decode_frame_header(raw.first<wire::kFrameHeaderBytes>()));
  if (step_ == Step::kProof && header.type == wire::FrameType::kRefuse) {
    return unauthenticated("the peer does not accept our proof: it has another secret");
  }
  const bool hello = step_ == Step::kHello;
  if (header.type != (hello ? wire::FrameType::kHello : wire::FrameType::kProof) ||
      header.fd_count != 0) {
    return Status(Reason::kFrame, hello ? "the first frame of a connection is no hello"
                                        : "the answer to our challenge is no proof");
  }
  payload_bytes_ = header.payload_bytes;
  return {};
}

Result<std::optional<wire::Challenge>> OwnerHandshake::take_hello(
    std::span<const std::byte> payload) {
  SL_ASSIGN(hello_, wire::decode_hello(payload));
  if (key_ == nullptr) {
    if (hello_.authenticates) {
      return unauthenticated(
          "the peer has a secret (option secret_file), and this engine has none");
    }
    step_ = Step::kDone;
    return std::optional<wire::Challenge>();
  }
  if (!hello_.authenticates) {
    return unauthenticated("this engine has a secret (option secret_file), and the peer has none");
  }
  hello_bytes_.assign(payload.begin(), payload.end());
  nonce_ = wire::random_nonce();
  step_ = Step::kProof;
  return std::optional(
      wire::Challenge{nonce_, key_->prove(wire::Side::kOwner, hello_bytes_, nonce_)});
}

Status OwnerHandshake::take_proof(std::span<const std::byte> payload) {
  SL_ASSIGN(const wire::Proof proof, wire::decode_proof(payload));
  if (key_->verify(proof, wire::Side::kInitiator, hello_bytes_, nonce_)) return {};
  return unauthenticated("the peer's proof is wrong: it has another secret, or none");
}

}  // namespace stagelink::engine
