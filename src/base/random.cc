#include "base/random.h"

#include <cstdio>
#include <cstdlib>

#include <sys/random.h>

namespace stagelink {

uint64_t random_u64() noexcept {
  uint64_t value = 0;
  // Up to 256 bytes are never short and never interrupted once the pool is ready (getrandom(2)).
  if (::getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) std::abort();
  return value;
}

InstanceId random_instance_id() noexcept { return InstanceId{random_u64(), random_u64()}; }

std::string InstanceId::to_string() const {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return text;
}

}  // namespace stagelink
