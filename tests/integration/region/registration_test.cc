// Registering much and often (T11), in vain (T37, T46), and all or nothing.

#include <cstdio>

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "integration/support/engine_test.h"

namespace stagelink::test {
namespace {

class RegistrationTest : public EngineTest {};

// T37.
TEST_F(RegistrationTest, ZeroBytesAndNullAreRefusedAndBreakNothing) {
  Link link(options("reader"), options("owner"), Path::kUnix, 65536);
  link.owner.fill(link.remote, seed());
  EXPECT_REASON(Reason::kInvalidArgument,
                link.engine->register_memory(link.memory.data(), 0).status());
  EXPECT_REASON(Reason::kInvalidArgument, link.engine->register_memory(nullptr, 64).status());
  EXPECT_REASON(Reason::kOverflow,
                link.engine->register_memory(link.memory.data(), ~size_t{0} - 10).status());
  EXPECT_EQ(link.engine->allocate(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(metric(*link.engine, "regions"), 1);
  ASSERT_OK(must(link.session.read(whole(65536))).wait(5s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

TEST_F(RegistrationTest, OverlappingRegionsEachKeepTheirBounds) {
  Link link(options("reader"), options("owner"), Path::kShm, 65536);
  link.owner.fill(link.remote, seed());
  Region inner = must(link.engine->register_memory(link.memory.data() + 4096, 4096));
  const Region twin = must(link.engine->register_memory(link.memory.data(), 65536));
  EXPECT_NE(twin.descriptor().index, link.local.descriptor().index);
  const std::array<const Region*, 2> own = {&inner, &twin};
  Session session = must(link.peer.session(own, std::span(&link.remote.desc, 1)));
  EXPECT_REASON(Reason::kOutOfBounds, session.read(whole(4097)).status());
  ASSERT_OK(must(session.read(whole(4096))).wait(5s));
  EXPECT_EQ(first_wrong(link.memory.bytes().subspan(4096, 4096), seed()), std::nullopt);
  EXPECT_EQ(first_not(link.memory.bytes().first(4096), kUntouched), std::nullopt);
  EXPECT_OK(inner.deregister());
  StridedRange range = whole(65536);
  range.local_region = 1;
  ASSERT_OK(must(session.read(range)).wait(5s));
  EXPECT_EQ(first_wrong(link.memory.bytes(), seed()), std::nullopt);
}

TEST_F(RegistrationTest, RegionsBeyondTheOptionAreALimit) {
  EngineOptions few = options("few");
  few.max_regions = 3;
  const auto engine = must(Engine::create(few));
  const PrivateMemory memory(4096);
  std::vector<Region> regions;
  for (int i = 0; i < 3; ++i) {
    regions.push_back(must(engine->register_memory(memory.data(), 64)));
  }
  EXPECT_REASON(Reason::kTooManyRegions, engine->register_memory(memory.data(), 64).status());
  EXPECT_REASON(Reason::kTooManyRegions, engine->allocate(64).status());
  regions.pop_back();
  EXPECT_OK(engine->allocate(64).status());
}

// T11.
TEST_F(RegistrationTest, TenThousandViewsComeAndGo) {
  const auto engine = make_engine("views");
  constexpr size_t kViews = 10'000;
  const PageMap memory(kViews * 4096);
  const int rounds = kSanitized ? 5 : 30;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Region> views;
    views.reserve(kViews);
    for (size_t i = 0; i < kViews; ++i) {
      views.push_back(must(engine->register_memory(memory.bytes().data() + i * 4096, 4096)));
    }
    if (round == 0) {
      EXPECT_EQ(metric(*engine, "regions"), kViews);
      EXPECT_EQ(metric(*engine, "registered_bytes"), kViews * 4096);
    }
    for (Region& view : views) EXPECT_OK(view.deregister());
  }
  EXPECT_EQ(metric(*engine, "regions"), 0);
  EXPECT_EQ(metric(*engine, "registered_bytes"), 0);
}

// T11: memory that is mapped, registered, used, deregistered and unmapped costs nothing afterwards.
TEST_F(RegistrationTest, ThreeHundredRoundsOfFreshMemoryStayFlat) {
  constexpr uint64_t kBytes = 2 << 20;
  OwnerProcess owner(options("owner"));
  const OwnedRegion remote = owner.allocate(kBytes);
  owner.fill(remote, seed());
  const auto engine = make_engine("reader");
  Peer peer = must(engine->connect(owner.descriptor()));
  const int rounds = kSanitized ? 40 : 300;
  uint64_t early = 0;
  for (int round = 0; round < rounds; ++round) {
    const PageMap memory(kBytes);
    Region local = must(engine->register_memory(memory.bytes().data(), kBytes));
    const std::array<const Region*, 1> own = {&local};
    Session session = must(peer.session(own, std::span(&remote.desc, 1)));
    ASSERT_OK(must(session.read(whole(kBytes))).wait(5s));
    ASSERT_TRUE(round % 50 != 0 || !first_wrong(memory.bytes(), seed()));
    ASSERT_EQ(local.deregister().reason(), Reason::kOk);
    if (round == 30) early = own_bytes();
  }
  EXPECT_TRUE(kSanitized || own_bytes() <= early + (4 << 20)) << own_bytes() << " after " << early;
  EXPECT_EQ(metric(*engine, "registered_bytes"), 0);
}

TEST_F(RegistrationTest, AllocatedMemoryIsGivenBackRoundAfterRound) {
  const auto engine = make_engine("owner");
  uint64_t early = 0;
  for (int round = 0; round < 100; ++round) {
    Region pool = must(engine->allocate(4 << 20));
    fill_pattern(pool.bytes().first(4096), seed());
    ASSERT_EQ(pool.deregister().reason(), Reason::kOk);
    if (round == 20) early = own_bytes();
  }
  EXPECT_TRUE(kSanitized || own_bytes() <= early + (2 << 20)) << own_bytes() << " after " << early;
  EXPECT_EQ(metric(*engine, "allocated_bytes"), 0);
}

// T46: a child without the right to lock memory.
int pin_without_rights(Channel& parent) {
  const auto dir = parent.receive_text();
  if (!dir) return 1;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return 2;
  data[0].effective &= ~(1U << CAP_IPC_LOCK);
  data[0].permitted &= ~(1U << CAP_IPC_LOCK);
  if (::syscall(SYS_capset, &header, data) != 0) return 3;
  const rlimit limit{64 << 10, 64 << 10};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 4;
  EngineOptions options;
  options.runtime_dir = *dir;
  const auto engine = must(Engine::create(options));
  AllocateOptions pinned;
  pinned.pin = Effort::kRequire;
  const Status required = engine->allocate(1 << 20, pinned).status();
  if (metric(*engine, "regions") != 0) return 5;  // Nothing half-registered.
  pinned.pin = Effort::kTry;
  const Status tried = engine->allocate(1 << 20, pinned).status();
  pinned.pin = Effort::kOff;
  const Status off = engine->allocate(1 << 20, pinned).status();
  if (!tried.ok() || !off.ok()) return 6;
  parent.send(required.to_string());
  return 0;
}
const RoleRegistration kPinWithoutRights("pin_without_rights", &pin_without_rights);

TEST_F(RegistrationTest, LockedMemoryLimitIsNamed) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer answers mlock itself";
  ChildProcess child("pin_without_rights");
  child.channel().send(runtime_dir());
  const auto told = child.channel().receive_text();
  ASSERT_TRUE(told.has_value()) << "exit code " << child.wait_exit();
  EXPECT_EQ(told->find("memlock (limit)"), 0U) << *told;
  EXPECT_NE(told->find("64 KiB"), std::string::npos) << *told;
  EXPECT_EQ(child.wait_exit(), 0);
}

// T46: a runtime directory that cannot be used.
TEST_F(RegistrationTest, RuntimeDirectoryThatCannotBeUsedIsNamed) {
  EngineOptions lost = options("lost");
  lost.runtime_dir = runtime_dir() + "/not/there";
  const Status missing = Engine::create(lost).status();
  EXPECT_EQ(missing.code(), Code::kNotFound) << missing.to_string();
  EXPECT_NE(missing.message().find(lost.runtime_dir), std::string_view::npos);
  lost.runtime_dir = "/proc";
  const Status refused = Engine::create(lost).status();
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("/proc"), std::string_view::npos) << refused.to_string();
  lost.runtime_dir = runtime_dir() + "/" + std::string(120, 'x');
  EXPECT_EQ(Engine::create(lost).status().code(), Code::kInvalidArgument);
}

// T46: huge pages where none are reserved.
TEST_F(RegistrationTest, HugePagesThatAreNotThereAreNamedOrDoneWithout) {
  const auto engine = make_engine("huge");
  AllocateOptions huge;
  huge.huge_pages = Effort::kRequire;
  const Status required = engine->allocate(4 << 20, huge).status();
  if (!required.ok()) {
    EXPECT_REASON(Reason::kHugePages, required);
    EXPECT_NE(required.message().find("/sys/"), std::string_view::npos) << required.to_string();
  }
  huge.huge_pages = Effort::kTry;
  EXPECT_OK(engine->allocate(4 << 20, huge).status());
}

}  // namespace
}  // namespace stagelink::test
