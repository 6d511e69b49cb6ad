#pragma once

namespace stagelink::test {

// Sanitizers make everything several times slower and map much: sizes and counts shrink.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SL_TEST_THREAD_SANITIZER 1
#endif
#endif
#if defined(SL_TEST_THREAD_SANITIZER) || defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

}  // namespace stagelink::test
