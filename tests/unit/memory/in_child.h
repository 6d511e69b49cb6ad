#pragma once

#include <cerrno>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

#include "integration/support/sanitized.h"

namespace stagelink::memory {

using test::kSanitized;

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
