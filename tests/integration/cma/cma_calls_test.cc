// What the kernel's copy costs: a system call for 1023 pieces, and two to look at the owner.

#include <array>
#include <cstring>

#include <sched.h>
#include <sys/syscall.h>

#include "integration/hot_path/call_counters.h"
#include "integration/hot_path/traced_child.h"
#include "integration/support/engine_test.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kBlocks = 4096;
constexpr uint64_t kRegion = 2 * kBlock * kBlocks;
constexpr uint64_t kBatches = 10;
constexpr uint32_t kReads = 1;
constexpr uint32_t kWrites = 2;

class CmaCallsTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    if (!kernel_copies()) GTEST_SKIP() << "the kernel or a seccomp filter forbids process_vm_readv";
    if (!calls_are_counted()) GTEST_SKIP() << "a sanitizer makes calls of its own";
  }
  // Heartbeats would be counted too.
  EngineOptions quiet(const std::string& name) const {
    EngineOptions quiet = options(name);
    quiet.heartbeat_interval = std::chrono::minutes(1);
    return quiet;
  }
};

void stay_on_one_core() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(::sched_getcpu()), &cores);
  ::sched_setaffinity(0, sizeof cores, &cores);
}

int move_between_marks(const EngineOptions& options, OwnerProcess& owner,
                       const RegionDesc& remote) {
  stay_on_one_core();
  const auto engine = must(Engine::create(options));
  const PageMap memory(kRegion);
  std::memset(memory.bytes().data(), 1, kRegion);
  const Region local = must(engine->register_memory(memory.bytes().data(), kRegion));
  Peer peer = must(engine->connect(owner.descriptor()));
  const std::array<const Region*, 1> own = {&local};
  Session session = must(peer.session(own, std::span(&remote, 1)));
  const StridedRange range{
      .bytes = kBlock, .count = kBlocks, .local_stride = 2 * kBlock, .remote_stride = 2 * kBlock};
  const auto batch = [&](bool write) {
    return must(write ? session.write(range) : session.read(range)).wait(10s).ok();
  };
  if (!batch(false) || !batch(true)) return 1;
  for (const uint32_t window : {kReads, kWrites}) {
    const uint64_t allocations = call_counts().allocations;
    mark(window);
    bool ok = true;
    for (uint64_t i = 0; i < kBatches; ++i) ok = batch(window == kWrites) && ok;
    mark(0);
    if (!ok) return 2;
    if (call_counts().allocations != allocations) return 3;
  }
  return 0;
}

TEST_F(CmaCallsTest, ABatchCostsACallForEach1023Pieces) {
  OwnerProcess owner(quiet("owner"));
  const OwnedRegion remote = owner.register_memory(kRegion);
  auto run = run_traced([&] { return move_between_marks(quiet("reader"), owner, remote.desc); },
                        /*seconds=*/60);
  if (!run) GTEST_SKIP() << "this system does not let a process trace its child";
  ASSERT_EQ(run->exit_code, 0) << "2: a batch failed; 3: a batch asked for memory";
  constexpr uint64_t kCalls = (kBlocks + 1022) / 1023 * kBatches;
  EXPECT_EQ(run->calls[kReads][SYS_process_vm_readv], kCalls) << run->list(kReads);
  EXPECT_EQ(run->total(kReads), 2 * kCalls) << run->list(kReads);  // And one look at the pidfd.
  EXPECT_EQ(run->calls[kWrites][SYS_process_vm_writev], kCalls) << run->list(kWrites);
  EXPECT_EQ(run->total(kWrites), 5 * kCalls) << run->list(kWrites);  // And two looks of two calls.
}

}  // namespace
}  // namespace stagelink::test
