#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "connector/kv/merge_plan.h"
#include "connector/kv/payload_header.h"

namespace {

using namespace stagelink::kv;  // NOLINT(google-build-using-namespace)

// What was accepted must be as it says: every byte of it is read, and its header written again
// gives the same header.
void check_accepted(const PayloadHeader& header, std::span<const std::byte> payload) {
  uint64_t tensors = 0;
  for (const PayloadTensor& tensor : header.tensors) {
    const auto bytes = payload.subspan(header.data_offset).subspan(tensor.offset, tensor.bytes);
    if (bytes.size() != tensor.bytes || tensor.layer >= header.num_layers) std::abort();
    tensors += tensor.bytes;
  }
  if (tensors > payload.size()) std::abort();
  // Plans are built from it, and stay within.
  const MergePart part{&header, {0, {0, 1, 1}, {1, 1, 2}}, false};
  for (const bool sliced : {true, false}) {
    MergePart one = part;
    one.sliced = sliced;
    auto plan = MergePlan::create({&one, 1});
    if (!plan.ok()) continue;
    if (plan->bytes() > payload.size() + kTensorAlign * (header.tensors.size() + 1)) std::abort();
    std::vector<std::byte> memory(plan->bytes());
    if (!plan->place(0, payload, memory).ok()) std::abort();
  }
  (void)sliced_by_sender(header, 0).ok();
  PayloadHeader ordered = header;
  ordered.tensors.clear();
  const auto text = encode_header(ordered);
  if (!text.ok() && text.status().code() != stagelink::Code::kLimit) std::abort();
}

}  // namespace

// A KV payload of a peer: refused as corrupt, or within its bounds in all that it says.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto payload = std::as_bytes(std::span(data, size));
  auto header = decode_header(payload, size);
  if (header.ok()) {
    check_accepted(*header, payload);
  } else if (header.status().code() != stagelink::Code::kCorrupt) {
    std::abort();
  }
  return 0;
}
