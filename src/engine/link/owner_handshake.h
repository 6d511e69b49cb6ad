#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "stagelink/result.h"
#include "wire/auth.h"
#include "wire/hello.h"

namespace stagelink::engine {

// The owner's side of a handshake up to its end, without the socket: a hello and, with a secret,
// the initiator's proof. What the peer learns until then is that we have a secret too.
//
// Thread-safety: none; used by one thread.
class OwnerHandshake {
 public:
  // Null: no proof is asked for. The key outlives the handshake.
  explicit OwnerHandshake(const wire::AuthKey* key) noexcept : key_(key) {}

  // How many bytes belong to the frame under way; never reaches beyond it.
  size_t wanted() const noexcept;
  // Takes at most wanted() bytes; tells what is to be sent now, if anything. Errors end the
  // handshake: corrupt (frame), incompatible (version), permission (authentication).
  Result<std::optional<wire::Challenge>> take(std::span<const std::byte> bytes);

  bool begun() const noexcept { return begun_; }
  bool done() const noexcept { return step_ == Step::kDone; }
  const wire::Hello& hello() const noexcept { return hello_; }  // Once it is done.

 private:
  enum class Step : uint8_t { kHello, kProof, kDone };

  Status read_header();
  Result<std::optional<wire::Challenge>> take_hello(std::span<const std::byte> payload);
  Status take_proof(std::span<const std::byte> payload);

  const wire::AuthKey* key_;
  Step step_ = Step::kHello;
  bool begun_ = false;
  std::vector<std::byte> input_;  // Of the frame under way.
  size_t payload_bytes_ = 0;
  wire::Hello hello_;
  std::vector<std::byte> hello_bytes_;  // As they came: what is proved.
  wire::Nonce nonce_{};
};

}  // namespace stagelink::engine
