#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stagelink/result.h"
#include "wire/auth.h"

namespace stagelink::cli::replay {

// The same mutual proof of a secret as between engines (wire/auth.h), over the text of the hello
// that one half sends to the other. Without a secret there is nothing to prove.
//
// Thread-safety: const methods may run at the same time.
class HalfProof {
 public:
  HalfProof() = default;  // Without a secret.
  // Empty path: no secret. Errors: those of read_secret_file.
  static Result<HalfProof> load(const std::string& secret_file);

  bool has_secret() const noexcept { return key_.has_value(); }
  // Hex, over the hello as sent and the nonce (hex) of the half that listens.
  std::string prove(wire::Side side, std::string_view hello, const wire::Nonce& nonce) const;
  bool verify(std::string_view proof, wire::Side side, std::string_view hello,
              const wire::Nonce& nonce) const;

 private:
  std::optional<wire::AuthKey> key_;
};

std::string nonce_text(const wire::Nonce& nonce);
// Errors: corrupt (frame).
Result<wire::Nonce> nonce_from(std::string_view text);

}  // namespace stagelink::cli::replay
