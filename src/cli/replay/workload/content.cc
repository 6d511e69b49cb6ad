#include "cli/replay/workload/content.h"

#include <cstring>

#include "base/random.h"

namespace stagelink::cli::replay {
namespace {

constexpr uint64_t kStep = 0x9e3779b97f4a7c15ULL;  // Odd, so that w -> w * kStep is a bijection.
constexpr size_t kWordBytes = sizeof(uint64_t);
constexpr size_t kLanes = 2;

// Two words: a vector register that every processor has.
using Words __attribute__((vector_size(kLanes * kWordBytes))) = uint64_t;

template <typename T>
inline __attribute__((always_inline)) T scramble(T x) {
  x ^= x >> 29;
  x ^= x << 17;
  x ^= x >> 37;
  return x;
}

uint64_t first_state(const PieceKey& key) noexcept {
  const uint64_t seed = SplitMix64::mix(SplitMix64::mix(key.id + kStep) + key.plane);
  return seed + key.first_token * (key.token_bytes / kWordBytes) * kStep;
}

Words first_states(uint64_t state) noexcept {
  Words states;
  for (size_t lane = 0; lane < kLanes; ++lane) states[lane] = state + lane * kStep;
  return states;
}

std::optional<size_t> scan(uint64_t state, std::span<const std::byte> bytes) noexcept {
  for (size_t at = 0; at < bytes.size(); at += kWordBytes, state += kStep) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, kWordBytes);
    if (word != scramble(state)) return at;
  }
  return {};
}

}  // namespace

void fill_piece(const PieceKey& key, std::span<std::byte> bytes) noexcept {
  const uint64_t state = first_state(key);
  Words states = first_states(state);
  const size_t bulk = bytes.size() / sizeof(Words) * sizeof(Words);
  for (size_t at = 0; at < bulk; at += sizeof(Words), states += kLanes * kStep) {
    const Words words = scramble(states);
    std::memcpy(bytes.data() + at, &words, sizeof(Words));
  }
  for (size_t at = bulk; at < bytes.size(); at += kWordBytes) {
    const uint64_t word = scramble(state + at / kWordBytes * kStep);
    std::memcpy(bytes.data() + at, &word, kWordBytes);
  }
}

std::optional<size_t> find_wrong_word(const PieceKey& key,
                                      std::span<const std::byte> bytes) noexcept {
  const uint64_t state = first_state(key);
  Words states = first_states(state);
  Words differences = {};
  const size_t bulk = bytes.size() / sizeof(Words) * sizeof(Words);
  for (size_t at = 0; at < bulk; at += sizeof(Words), states += kLanes * kStep) {
    Words words;
    std::memcpy(&words, bytes.data() + at, sizeof(Words));
    differences |= words ^ scramble(states);
  }
  uint64_t any = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) any |= differences[lane];
  const auto in_tail = scan(state + bulk / kWordBytes * kStep, bytes.subspan(bulk));
  if (any == 0) return in_tail ? std::optional<size_t>(bulk + *in_tail) : std::nullopt;
  return scan(state, bytes);  // The slow way, to name the place.
}

}  // namespace stagelink::cli::replay
