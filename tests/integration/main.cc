#include <string_view>

#include <gtest/gtest.h>

#include "integration/support/child_process.h"
#include "integration/support/sanitized.h"

#if defined(SL_TEST_THREAD_SANITIZED)
// Some tests read the same bytes many times in one batch, whose ranges have no order among each
// other. The kernel's copies are the only ones of the engine that the sanitizer sees.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:process_vm_readv\n"; }
#endif

// A child of a test is this program again: "integration_tests --role NAME --channel FD".
int main(int argc, char** argv) {
  if (argc >= 2 && std::string_view(argv[1]) == "--role") {
    return stagelink::test::run_role(argc, argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
