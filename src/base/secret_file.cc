#include "base/secret_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace stagelink {
namespace {

// One more than allowed, so that a file that grows meanwhile is noticed.
constexpr size_t kBufferBytes = kMaxSecretBytes + 1;

constexpr const char* kRemedy = "make one with: (umask 077; head -c 32 /dev/urandom > FILE)";

// `named` is the option and the path.
std::string described(const std::string& named, const struct stat& file) {
  return fmt::format("{} (mode {:04o}, {} bytes)", named, file.st_mode & 07777U, file.st_size);
}

Status cannot_open(const std::string& named, const std::string& path, int error) {
  struct stat file {};
  if (error == ENOENT || ::lstat(path.c_str(), &file) != 0) {
    return Status(error == ENOENT ? Reason::kNotFound : Reason::kInvalidArgument,
                  fmt::format("{}: {}; {}", named, std::strerror(error), kRemedy));
  }
  const std::string what = described(named, file);
  if (error == ELOOP) {
    return Status(Reason::kPermission, what + ": is a symbolic link; name the file itself");
  }
  return Status(Reason::kPermission, fmt::format("{}: {}", what, std::strerror(error)));
}

Status check_file(const std::string& named, const struct stat& file, size_t min_bytes) {
  const std::string what = described(named, file);
  if (!S_ISREG(file.st_mode)) return Status(Reason::kPermission, what + ": is no regular file");
  if (file.st_uid != ::geteuid()) {
    return Status(Reason::kOtherUser,
                  fmt::format("{}: belongs to uid {}, and this process is of {}", what, file.st_uid,
                              ::geteuid()));
  }
  if ((file.st_mode & 07777U & ~0600U) != 0) {
    return Status(Reason::kPermission, what + ": only its user may read it; chmod 600 it");
  }
  const auto size = static_cast<uint64_t>(file.st_size);
  if (size < min_bytes || size > kMaxSecretBytes) {
    return Status(Reason::kInvalidArgument, fmt::format("{}: a secret has {} to {} bytes; {}", what,
                                                        min_bytes, kMaxSecretBytes, kRemedy));
  }
  return {};
}

}  // namespace

Secret::Secret() : bytes_(new std::byte[kBufferBytes]()) {}

Secret::Secret(Secret&& other) noexcept
    : bytes_(std::move(other.bytes_)), size_(std::exchange(other.size_, 0)) {}

Secret::~Secret() {
  if (bytes_ != nullptr) sodium_memzero(bytes_.get(), kBufferBytes);
}

Result<Secret> read_secret_file(const std::string& path, size_t min_bytes,
                                std::string_view option) {
  const std::string named = fmt::format("{} {}", option, path);
  // A FIFO or a terminal must not hold us up.
  const UniqueFd fd(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!fd) return cannot_open(named, path, errno);
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0) return cannot_open(named, path, errno);
  SL_TRY(check_file(named, file, min_bytes));
  Secret secret;
  while (secret.size_ < kBufferBytes) {
    const ssize_t got =
        ::read(fd.get(), secret.bytes_.get() + secret.size_, kBufferBytes - secret.size_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot_open(named, path, errno);
    if (got == 0) break;
    secret.size_ += static_cast<size_t>(got);
  }
  if (secret.size_ != static_cast<uint64_t>(file.st_size)) {
    return Status(Reason::kBusy, described(named, file) + ": changed while it was read");
  }
  return secret;
}

}  // namespace stagelink
