#pragma once

#include <cstdint>
#include <vector>

#include "stagelink/range_list.h"

namespace stagelink::test {

// Owns the arrays that a RangeList refers to.
struct Ranges {
  std::vector<uint64_t> local;
  std::vector<uint64_t> remote;
  std::vector<uint64_t> sizes;
  std::vector<uint32_t> local_regions;
  std::vector<uint32_t> remote_regions;

  void add(uint64_t local_offset, uint64_t remote_offset, uint64_t size) {
    local.push_back(local_offset);
    remote.push_back(remote_offset);
    sizes.push_back(size);
  }
  RangeList list() const { return {local, remote, sizes, local_regions, remote_regions}; }
};

}  // namespace stagelink::test
