#pragma once

#include <string>

#include "store/shm/arena.h"

namespace stagelink::test {

// Looks at an arena under its lock, slot by slot: empty if lists, gaps, index and sums are what the
// slots say, no two objects overlap or have one key, and nobody holds anything who is no member.
// Otherwise what is wrong.
std::string what_is_wrong(const store::shm::Arena& arena, const store::shm::Arena::Locked& locked);

}  // namespace stagelink::test
