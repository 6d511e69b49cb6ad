#pragma once

// The one place that knows whether a sanitizer is compiled in; GCC and clang say it differently.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SL_TEST_SANITIZED 1
#endif
#if __has_feature(thread_sanitizer)
#define SL_TEST_SANITIZED 1
#define SL_TEST_THREAD_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SL_TEST_SANITIZED 1
#endif
#if defined(__SANITIZE_THREAD__)
#define SL_TEST_SANITIZED 1
#define SL_TEST_THREAD_SANITIZED 1
#endif

namespace stagelink::test {

// Sanitizers make everything several times slower, map much, start threads, open files and answer
// mlock() themselves: sizes and counts shrink.
#if defined(SL_TEST_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

#if defined(SL_TEST_THREAD_SANITIZED)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

}  // namespace stagelink::test
