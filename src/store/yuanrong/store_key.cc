#include "store/yuanrong/store_key.h"

#include <array>

#include <fmt/format.h>
#include <sodium.h>

namespace stagelink::store::yuanrong {
namespace {

constexpr size_t kLongestEscaped = 200;
constexpr std::string_view kPlainMarks = "-_!@#^*()+=:;";

bool is_plain(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kPlainMarks.find(c) != kPlainMarks.npos;
}

std::string digest_of(std::string_view key) {
  std::array<unsigned char, 16> sum{};
  crypto_generichash(sum.data(), sum.size(), reinterpret_cast<const unsigned char*>(key.data()),
                     key.size(), nullptr, 0);
  std::string out;
  for (const unsigned char byte : sum) out += fmt::format("{:02x}", byte);
  return out;
}

}  // namespace

std::string store_key(std::string_view key) {
  std::string out;
  for (size_t i = 0; i < key.size(); ++i) {
    const char c = key[i];
    if (is_plain(c) && (c != '!' || i > 0)) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
    if (out.size() > kLongestEscaped) return "!d!" + digest_of(key);
  }
  return out;
}

std::string chunk_key(std::string_view key, uint64_t generation, uint32_t index) {
  return fmt::format("!c!{}!{:x}!{:x}", digest_of(key), generation, index);
}

}  // namespace stagelink::store::yuanrong
