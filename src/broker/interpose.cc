// mmap and munmap for the whole process of the broker, the library's included: the executable's
// symbols come first. Part of the executable alone, and of no build with a sanitizer, which has a
// mmap of its own.
#include "broker/interpose.h"

#include <atomic>
#include <cstddef>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace stagelink::broker {
namespace {

std::atomic<MappingListener*> interposed_listener{nullptr};

}  // namespace

void listen_to_mappings(MappingListener* listener) noexcept { interposed_listener = listener; }

}  // namespace stagelink::broker

#if !defined(__SANITIZE_ADDRESS__) && !defined(STAGELINK_SANITIZED)

namespace {

void* map_and_tell(void* address, size_t bytes, int protection, int flags, int fd,
                   off_t offset) noexcept {
  const long got = ::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
  if (got == -1) return MAP_FAILED;
  void* const at = reinterpret_cast<void*>(got);
  if ((flags & MAP_SHARED) != 0 && fd >= 0) {
    if (auto* listener = stagelink::broker::interposed_listener.load()) {
      listener->mapped(at, bytes, fd, offset);
    }
  }
  return at;
}

}  // namespace

#define STAGELINK_INTERPOSED extern "C" __attribute__((visibility("default")))

STAGELINK_INTERPOSED void* mmap(void* address, size_t bytes, int protection, int flags, int fd,
                                off_t offset) noexcept {
  return map_and_tell(address, bytes, protection, flags, fd, offset);
}

STAGELINK_INTERPOSED void* mmap64(void* address, size_t bytes, int protection, int flags, int fd,
                                  off_t offset) noexcept {
  return map_and_tell(address, bytes, protection, flags, fd, offset);
}

STAGELINK_INTERPOSED int munmap(void* address, size_t bytes) noexcept {
  if (auto* listener = stagelink::broker::interposed_listener.load()) {
    listener->unmapped(address, bytes);
  }
  return static_cast<int>(::syscall(SYS_munmap, address, bytes));
}

#endif
