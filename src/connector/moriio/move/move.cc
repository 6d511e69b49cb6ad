#include "connector/moriio/move/move.h"

#include <numeric>
#include <unordered_map>

namespace stagelink::moriio {

uint64_t Ranges::bytes() const noexcept {
  return std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
}

void Ranges::append(const Ranges& other) {
  const auto join = [](std::vector<uint64_t>& to, const std::vector<uint64_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  join(local_offsets, other.local_offsets);
  join(remote_offsets, other.remote_offsets);
  join(sizes, other.sizes);
}

std::vector<Move> merge_moves(std::vector<Move> moves) {
  std::vector<Move> merged;
  std::unordered_map<uint64_t, size_t> place_of;
  for (Move& move : moves) {
    const uint64_t identity = move.target->identity();
    if (identity != 0) {
      const auto [at, fresh] = place_of.try_emplace(identity, merged.size());
      if (!fresh) {
        merged[at->second].ranges.append(move.ranges);
        continue;
      }
    }
    merged.push_back(std::move(move));
  }
  return merged;
}

}  // namespace stagelink::moriio
