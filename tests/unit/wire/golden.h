#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "stagelink/status.h"

namespace stagelink::wire {

inline std::vector<std::byte> read_golden(const std::string& name) {
  std::ifstream file(std::string(STAGELINK_SOURCE_DIR) + "/tests/unit/wire/golden/" + name,
                     std::ios::binary);
  EXPECT_TRUE(file.good()) << "cannot read golden/" << name;
  const std::vector<char> raw{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(raw));
  return {bytes.begin(), bytes.end()};
}

// The bytes of one layout, fixed for good. With STAGELINK_WRITE_GOLDEN=1 the file is written anew:
// only for a new layout, or with a new major version.
inline void expect_golden(const std::string& name, std::span<const std::byte> bytes) {
  if (std::getenv("STAGELINK_WRITE_GOLDEN") != nullptr) {
    std::ofstream file(std::string(STAGELINK_SOURCE_DIR) + "/tests/unit/wire/golden/" + name,
                       std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  const auto golden = read_golden(name);
  EXPECT_TRUE(std::equal(golden.begin(), golden.end(), bytes.begin(), bytes.end()))
      << name << ": the layout has changed";
}

// Calls `decode` with every proper prefix of `bytes` and expects corrupt (frame).
template <typename Decode>
void expect_all_truncations_refused(std::span<const std::byte> bytes, Decode decode) {
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto status = decode(bytes.first(size)).status();
    EXPECT_EQ(status.reason(), Reason::kFrame) << size << ": " << status.to_string();
    EXPECT_FALSE(status.message().empty());
  }
}

inline bool names(const Status& status, std::string_view field) {
  return status.message().find(field) != std::string_view::npos;
}

template <typename T>
void place_at(std::vector<std::byte>& bytes, size_t offset, T value) {
  ASSERT_LE(offset + sizeof(T), bytes.size());
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

inline std::vector<std::byte> with_extra_byte(std::span<const std::byte> bytes) {
  std::vector<std::byte> out(bytes.begin(), bytes.end());
  out.push_back(std::byte{0});
  return out;
}

}  // namespace stagelink::wire
