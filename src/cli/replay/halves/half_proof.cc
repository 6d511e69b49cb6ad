#include "cli/replay/halves/half_proof.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/secret_file.h"
#include "cli/replay/rank/hex.h"

namespace stagelink::cli::replay {
namespace {

// So that no proof of a replay is one of an engine.
constexpr std::string_view kLabel = "stagelink replay 1\n";

std::vector<std::byte> labelled(std::string_view hello) {
  std::vector<std::byte> bytes(kLabel.size() + hello.size());
  const auto end_of_label = std::ranges::copy(std::as_bytes(std::span(kLabel)), bytes.begin()).out;
  std::ranges::copy(std::as_bytes(std::span(hello)), end_of_label);
  return bytes;
}

template <typename Array>
Result<Array> array_from(std::string_view text) {
  SL_ASSIGN(const std::vector<std::byte> bytes, from_hex(text));
  Array array{};
  if (bytes.size() != array.size()) return Status(Reason::kFrame, "a proof of the wrong length");
  std::copy(bytes.begin(), bytes.end(), array.begin());
  return array;
}

}  // namespace

Result<HalfProof> HalfProof::load(const std::string& secret_file) {
  HalfProof proof;
  if (secret_file.empty()) return proof;
  SL_ASSIGN(const Secret secret, read_secret_file(secret_file));
  SL_ASSIGN(wire::AuthKey key, wire::AuthKey::derive(secret.bytes()));
  proof.key_.emplace(std::move(key));
  return proof;
}

std::string HalfProof::prove(wire::Side side, std::string_view hello,
                             const wire::Nonce& nonce) const {
  if (!key_) return {};
  const wire::Proof proof = key_->prove(side, labelled(hello), nonce);
  return to_hex(proof);
}

bool HalfProof::verify(std::string_view proof, wire::Side side, std::string_view hello,
                       const wire::Nonce& nonce) const {
  const Result<wire::Proof> given = array_from<wire::Proof>(proof);
  return key_ && given.ok() && key_->verify(*given, side, labelled(hello), nonce);
}

std::string nonce_text(const wire::Nonce& nonce) { return to_hex(nonce); }

Result<wire::Nonce> nonce_from(std::string_view text) { return array_from<wire::Nonce>(text); }

}  // namespace stagelink::cli::replay
