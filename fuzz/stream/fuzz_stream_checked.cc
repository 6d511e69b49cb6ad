#include <algorithm>

#include "stream_victim.h"
#include "wire/frame_sum.h"

namespace {

// A fuzzer does not find sums by itself: the frames of the input with theirs made good.
std::vector<std::byte> with_sums(std::span<const std::byte> in) {
  using namespace stagelink::wire;
  std::vector<std::byte> out;
  while (in.size() >= kFrameHeaderBytes) {
    RawHeader header;
    std::copy_n(in.begin(), header.size(), header.begin());
    seal_header(header);
    uint32_t told = 0;
    std::copy_n(header.begin() + 8, sizeof told, reinterpret_cast<std::byte*>(&told));
    in = in.subspan(header.size());
    const auto payload = in.first(std::min<size_t>(told, in.size()));
    in = in.subspan(payload.size());
    const auto begin = static_cast<ptrdiff_t>(out.size());
    out.insert(out.end(), header.begin(), header.end());
    out.insert(out.end(), payload.begin(), payload.end());
    if (payload.size() < told) return out;
    const Trailer sum = sum_of({out.begin() + begin, out.end()});
    out.insert(out.end(), sum.begin(), sum.end());
  }
  out.insert(out.end(), in.begin(), in.end());
  return out;
}

}  // namespace

// A peer that sends any bytes on a checked data connection. The first byte: even, frames with their
// right sums; odd, the bytes as they are.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::fuzz;
  static Victim victim;
  if (size == 0) return 0;
  const auto rest = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] % 2 == 0) {
    attack(victim, with_sums(rest), Connection::kChecked);
  } else {
    attack(victim, rest, Connection::kChecked);
  }
  return 0;
}
