#pragma once

#include "integration/support/sanitized.h"

#if defined(SL_TEST_THREAD_SANITIZED)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace stagelink::test {

// While it lives, ThreadSanitizer does not look at this thread's accesses: they are ordered through
// another process (a message to the test and back), which it cannot see.
class UnseenByTsan {
 public:
  UnseenByTsan() {
#if defined(SL_TEST_THREAD_SANITIZED)
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~UnseenByTsan() {
#if defined(SL_TEST_THREAD_SANITIZED)
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  }
  UnseenByTsan(const UnseenByTsan&) = delete;
  UnseenByTsan& operator=(const UnseenByTsan&) = delete;
};

}  // namespace stagelink::test
