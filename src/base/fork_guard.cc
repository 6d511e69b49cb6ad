#include "base/fork_guard.h"

#include <atomic>
#include <mutex>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace stagelink {
namespace {

// The page holds the token of the process that armed it; a child reads 0.
std::atomic<std::atomic<uint64_t>*> g_page{nullptr};
std::atomic<uint64_t> g_next_token{1};

std::atomic<uint64_t>* map_page() noexcept {
  const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, size, MADV_WIPEONFORK) != 0) {
    ::munmap(page, size);
    return nullptr;
  }
  return static_cast<std::atomic<uint64_t>*>(page);
}

}  // namespace

uint64_t ForkGuard::arm() noexcept {
  std::atomic<uint64_t>* page = g_page.load();
  if (page == nullptr) {
    std::atomic<uint64_t>* fresh = map_page();
    if (fresh == nullptr) return 0;  // Kernel before 4.14: forks go unseen.
    if (g_page.compare_exchange_strong(page, fresh)) {
      page = fresh;
    } else {
      ::munmap(fresh, static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
    }
  }
  uint64_t token = page->load();
  if (token != 0) return token;
  const uint64_t fresh_token =
      (static_cast<uint64_t>(::getpid()) << 32) | g_next_token.fetch_add(1);
  return page->compare_exchange_strong(token, fresh_token) ? fresh_token : token;
}

bool ForkGuard::forked(uint64_t token) noexcept {
  if (token == 0) return false;
  const std::atomic<uint64_t>* page = g_page.load(std::memory_order_relaxed);
  // Relaxed: a fork orders everything before it; within one process the word never changes again.
  return page->load(std::memory_order_relaxed) != token;
}

Status forked_status(const char* what) {
  return Status(Reason::kForked,
                std::string(what) +
                    " was created before fork() and belongs to the parent; create a new engine in "
                    "this process");
}

}  // namespace stagelink
