#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "connector/moriio/io/engine_desc.h"
#include "connector/moriio/io/inbound_table.h"
#include "connector/moriio/io/memory_desc.h"

namespace {

// What is accepted says the same after another round, and a region lies around its memory.
template <typename Desc>
void check_round_trip(const Desc& desc) {
  const auto again = Desc::unpack(desc.pack());
  if (!again.ok() || !(*again == desc)) std::abort();
}

}  // namespace

// The first byte selects the decoder.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::moriio;
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] == 'e') {
    if (const auto desc = EngineDesc::unpack(input); desc.ok()) check_round_trip(*desc);
  } else if (data[0] == 'n') {
    if (const auto notice = unpack_inbound_notice(input); notice.ok()) {
      const auto again = pack_inbound_notice((*notice).id, (*notice).key);
      if (!std::equal(again.begin(), again.end(), input.begin(), input.end())) std::abort();
    }
  } else if (const auto desc = MemoryDesc::unpack(input); desc.ok()) {
    check_round_trip(*desc);
    const auto region = (*desc).region();
    if (!region.ok()) return 0;
    if ((*desc).data < (*region).address) std::abort();
    if ((*desc).data - (*region).address + (*desc).size > (*region).bytes) std::abort();
  }
  return 0;
}
