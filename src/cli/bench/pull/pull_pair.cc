#include "cli/bench/pull/pull_pair.h"

#include <atomic>
#include <new>
#include <thread>

#include <sys/mman.h>

#include "base/deadline.h"

namespace stagelink::cli::bench {

// What the child tells before its first turn.
struct PullPair::Told {
  std::atomic<uint32_t> ready{0};
  uint16_t zmq_port = 0;
  uint16_t rpc_port = 0;
};

Result<std::unique_ptr<PullPair>> PullPair::start(const pull::PullOptions& options,
                                                  const Role& role) {
  void* const memory =
      ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status(Reason::kLimit, "no memory for two processes");
  auto* const told = new (memory) Told;
  SL_ASSIGN(ForkedPair process, ForkedPair::start([&](PairPage& page) -> Status {
              SL_ASSIGN(const auto connector, pull::PullConnector::create(options));
              told->zmq_port = connector->connection_info().zmq_port;
              told->rpc_port = connector->connection_info().rpc_port;
              told->ready.store(1);
              const Status status = role(*connector, page);
              if (!status.ok()) page.failed.store(1);
              (void)connector->close();
              return status;
            }));
  std::unique_ptr<PullPair> pair(new PullPair(std::move(process), told));
  const Deadline deadline = Deadline::in(std::chrono::seconds(20));
  while (told->ready.load() == 0) {
    if (pair->page().failed.load() != 0 || deadline.passed()) {
      return Status(Reason::kTimedOut, "the other process has no connector");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return pair;
}

PullPair::PullPair(ForkedPair process, Told* told) noexcept
    : process_(std::move(process)), told_(told) {}

PullPair::~PullPair() { ::munmap(told_, sizeof(Told)); }

pull::PullMetadata PullPair::address() const {
  pull::PullMetadata address;
  address.source_host = "127.0.0.1";
  address.source_port = told_->zmq_port;
  address.source_rpc_port = told_->rpc_port;
  return address;
}

pull::PullOptions bench_pull_options(pull::Role role, uint64_t pool_bytes) {
  pull::PullOptions options;
  options.host = "127.0.0.1";
  options.role = role;
  options.memory_pool_size = pool_bytes;
  return options;
}

}  // namespace stagelink::cli::bench
