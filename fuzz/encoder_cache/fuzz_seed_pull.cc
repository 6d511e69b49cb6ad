#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <nlohmann/json.hpp>

#include "connector/encoder_cache/producer/seed_pull.h"

namespace ec = stagelink::encoder_cache;

// The message of a peer that knows no leases. What is read of it is bounded, and the same message
// said again reads the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  auto ask = ec::read_seed_ask(bytes);
  if (!ask.ok()) return 0;
  if (ask->mm_hash.empty() || ask->mm_hash.size() > 512 || ask->session.size() > 512) std::abort();
  const nlohmann::json said = {{"op", "pull"},
                               {"mm_hash", ask->mm_hash},
                               {"dst_session", ask->session},
                               {"dst_ptr", ask->address},
                               {"nbytes", ask->nbytes}};
  auto again = ec::read_seed_ask(said.dump());
  if (!again.ok() || again->mm_hash != ask->mm_hash || again->address != ask->address ||
      again->nbytes != ask->nbytes || again->session != ask->session) {
    std::abort();
  }
  return 0;
}
