#pragma once

#include "integration/support/sanitized.h"

#if defined(SL_TEST_THREAD_SANITIZED)
// libzmq is not instrumented: the sanitizer sees its calls of the C library and nothing of how its
// threads take turns. Memory of a pull connector's pool is written anew once its reader has said
// that it is done, which is ordered through the reader's process. Included by one file of each
// program.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:libzmq.so\n"
         "race:libsodium.so\n"
         "mutex:libzmq.so\n"
         "deadlock:libzmq.so\n"
         "race:stamp_slots.cc\n"
         "race:copy_into_pool\n";
}
#endif
