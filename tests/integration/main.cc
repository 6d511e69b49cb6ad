#include <string_view>

#include <gtest/gtest.h>

#include "integration/support/child_process.h"

// A child of a test is this program again: "integration_tests --role NAME --channel FD".
int main(int argc, char** argv) {
  if (argc >= 2 && std::string_view(argv[1]) == "--role") {
    return stagelink::test::run_role(argc, argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
