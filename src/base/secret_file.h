#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "stagelink/result.h"

namespace stagelink {

// The bytes of a secret. Wiped when it goes.
//
// Thread-safety: none; used by one thread.
class Secret {
 public:
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&&) = delete;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret();
  std::span<const std::byte> bytes() const noexcept { return {bytes_.get(), size_}; }

 private:
  friend Result<Secret> read_secret_file(const std::string& path, size_t min_bytes,
                                         std::string_view option);
  Secret();

  std::unique_ptr<std::byte[]> bytes_;
  size_t size_ = 0;
};

inline constexpr size_t kMinSecretBytes = 32;
inline constexpr size_t kMaxSecretBytes = 4096;

// All bytes of the file, which must be a regular file of this user that nobody else may touch (mode
// 0600 or stricter), and no symbolic link. Errors name the option that names it, path, mode and
// size: not_found, permission, permission (other_user), invalid_argument (size).
Result<Secret> read_secret_file(const std::string& path, size_t min_bytes = kMinSecretBytes,
                                std::string_view option = "secret_file");

}  // namespace stagelink
