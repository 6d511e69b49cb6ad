#include "stream_victim.h"

// A peer that sends any bytes on a data connection with a staging area, whose half the owner finds
// full of the same bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink::fuzz;
  static Victim victim;
  attack(victim, std::as_bytes(std::span(data, size)), Connection::kStaged);
  return 0;
}
