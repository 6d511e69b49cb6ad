#include "base/host_id.h"

#include <cctype>
#include <fstream>
#include <string>

namespace stagelink {

InstanceId host_id() noexcept {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  InstanceId id;
  // 32 hex digits with dashes between.
  for (const char c : text) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) continue;
    const auto digit = static_cast<uint64_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    id.high = id.high << 4 | id.low >> 60;
    id.low = id.low << 4 | digit;
  }
  return id;
}

}  // namespace stagelink
