#include "cli/bench/store/store_pair.h"

#include <csignal>
#include <new>
#include <thread>

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/futex.h"
#include "base/log.h"

namespace stagelink::cli::bench {

namespace {

constexpr auto kTurnTimeout = std::chrono::seconds(20);
constexpr auto kTurnSpin = std::chrono::milliseconds(2);
constexpr auto kTurnTick = std::chrono::milliseconds(100);  // A failure wakes nobody.
constexpr auto kLeaveTimeout = std::chrono::seconds(5);

}  // namespace

bool PairPage::wait_for(uint32_t value) noexcept {
  const Deadline deadline = Deadline::in(kTurnTimeout);
  const Deadline spin = Deadline::in(kTurnSpin);
  for (uint32_t now = turn.load(); now < value; now = turn.load()) {
    if (failed.load() != 0 || deadline.passed()) return false;
    if (!spin.passed()) {
      ::sched_yield();
      continue;
    }
    sleepers.fetch_add(1);
    futex_wait(turn, now, Deadline::earlier(deadline, Deadline::in(kTurnTick)).left(),
               FutexScope::kShared);
    sleepers.fetch_sub(1);
  }
  return true;
}

void PairPage::set(uint32_t value) noexcept {
  turn.store(value);
  if (sleepers.load() != 0) futex_wake_all(turn, FutexScope::kShared);
}

Result<ForkedPair> ForkedPair::start(const std::function<Status(PairPage&)>& role) {
  void* memory =
      ::mmap(nullptr, sizeof(PairPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status(Reason::kLimit, "no memory for two processes");
  auto* const page = new (memory) PairPage;
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const Status status = role(*page);
    if (!status.ok()) {
      log_failure("bench", status);
      page->failed.store(1);
    }
    ::_exit(status.ok() ? 0 : 1);
  }
  ForkedPair pair(page, pid);
  if (pid < 0) return Status(Reason::kLimit, "fork failed");
  return pair;
}

ForkedPair::~ForkedPair() {
  if (page_ == nullptr) return;
  page_->failed.store(1);  // Whatever it still waits for does not come.
  const Deadline deadline = Deadline::in(kLeaveTimeout);
  while (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (deadline.passed()) (void)::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::munmap(page_, sizeof(PairPage));
}

Result<std::unique_ptr<StorePair>> StorePair::start(const StoreOptions& options, const Role& role) {
  SL_ASSIGN(ForkedPair process, ForkedPair::start([&](PairPage& page) -> Status {
              SL_ASSIGN(const auto store, ObjectStore::open(options));
              const Status status = role(*store, page);
              if (!status.ok()) page.failed.store(1);
              (void)store->close();
              return status;
            }));
  return std::unique_ptr<StorePair>(new StorePair(std::move(process)));
}

StoreOptions bench_store_options(uint64_t capacity) {
  StoreOptions options;
  options.arena.name = fmt::format("bench-{}", ::getpid());
  options.arena.capacity = capacity;
  return options;
}

}  // namespace stagelink::cli::bench
