#pragma once

#include <cerrno>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

namespace stagelink::memory {

// Sanitizers map much, start threads and answer mlock() themselves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

// Runs `body` in a forked child and gives what it returns (0 to 99), or 100 + the signal that
// killed it. The body may not use gtest's checks: only its number comes back.
template <typename Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 100 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace stagelink::memory
