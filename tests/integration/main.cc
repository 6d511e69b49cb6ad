#include <string_view>

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "integration/support/child_process.h"
#include "integration/support/sanitized.h"
#include "integration/support/tsan_suppressions.h"

#if defined(SL_TEST_THREAD_SANITIZED)
// Some tests read the same bytes many times in one batch, whose ranges have no order among each
// other. Of all copies the sanitizer would see those of the kernel only, so it does not see them.
extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long locals,
                                    const iovec* remote, unsigned long remotes,
                                    unsigned long flags) noexcept {
  return ::syscall(SYS_process_vm_readv, pid, local, locals, remote, remotes, flags);
}
#endif

// A child of a test is this program again: "integration_tests --role NAME --channel FD".
int main(int argc, char** argv) {
  if (argc >= 2 && std::string_view(argv[1]) == "--role") {
    return stagelink::test::run_role(argc, argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
