// What a small get from another process of this host costs, once both know each other.

#include "integration/connector/pull/pull_test.h"
#include "integration/hot_path/call_counters.h"
#include "integration/hot_path/traced_child.h"

namespace stagelink::test {
namespace {

constexpr int kHotGets = 50;
constexpr uint32_t kHotMark = 1;
// The claim and its answer; and the release, unless it leaves together with others.
constexpr uint64_t kFewestCalls = 2;
constexpr uint64_t kMostCalls = 3;
constexpr uint64_t kHeartbeats = 20;  // Calls of an idle engine while the test runs.
constexpr uint64_t kMostAllocations = 30;

class PullHotPathTest : public PullTest {
 protected:
  static Status get_often(pull::PullConnector& receiver, const pull::PullMetadata& sender) {
    for (int i = 0; i < kHotGets; ++i) {
      SL_ASSIGN(const pull::Received got, get(receiver, "k", sender));
      if (got.bytes != 4096) return Status(Reason::kCorrupt, "another payload");
    }
    return {};
  }
};

TEST_F(PullHotPathTest, ASmallGetMakesThreeSystemCallsAtMost) {
  if (!calls_are_counted()) GTEST_SKIP() << "a sanitizer makes system calls of its own";
  PullPeer sender(json(""));
  (void)must(sender.put("k", 1, 4096, /*readers=*/0));
  const auto run = run_traced(
      [&] {
        auto receiver = connector(R"("role": "receiver")");
        if (!get_often(*receiver, sender.address()).ok()) return 1;
        mark(kHotMark);
        const Status status = get_often(*receiver, sender.address());
        mark(0);
        return status.ok() ? 0 : 2;
      },
      60);
  if (!run) GTEST_SKIP() << "this system does not let a process trace its child";
  ASSERT_EQ(run->exit_code, 0);
  EXPECT_GE(run->total(kHotMark), kHotGets * kFewestCalls) << run->list(kHotMark);
  EXPECT_LE(run->total(kHotMark), kHotGets * kMostCalls + kHeartbeats) << run->list(kHotMark);
}

TEST_F(PullHotPathTest, ASmallGetAllocatesLittle) {
  if (!calls_are_counted()) GTEST_SKIP() << "a sanitizer replaces malloc itself";
  PullPeer sender(json(""));
  (void)must(sender.put("k", 1, 4096, /*readers=*/0));
  auto receiver = connector(R"("role": "receiver")");
  ASSERT_OK(get_often(*receiver, sender.address()));
  const uint64_t before = call_counts().allocations;
  ASSERT_OK(get_often(*receiver, sender.address()));
  const uint64_t each = (call_counts().allocations - before) / kHotGets;
  EXPECT_LE(each, kMostAllocations);
}

}  // namespace
}  // namespace stagelink::test
