// Processes that are killed between any two of their steps. After each the others find the arena
// whole: see arena_check.h.

#include <csignal>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "integration/store/arena_check.h"
#include "integration/store/store_test.h"
#include "integration/support/sanitized.h"
#include "store/shm/shm_backend.h"

namespace stagelink::test {
namespace {

using store::shm::Arena;
using store::shm::PausePoint;
using store::shm::Pauses;

// Thousands of rounds by STAGELINK_CRASH_ROUNDS; some dozens in a usual run.
int rounds_of(int usual) {
  const char* text = std::getenv("STAGELINK_CRASH_ROUNDS");
  if (text != nullptr) return std::atoi(text);
  return kThreadSanitized ? (usual + 3) / 4 : usual;  // Where a fork takes ten times as long.
}

// Kills this process when it is at `point` for the `hits`th time.
struct Death {
  PausePoint point = PausePoint::kCount;
  int hits = 0;
  static void at(PausePoint point, void* context) {
    auto* death = static_cast<Death*>(context);
    if (point == death->point && --death->hits == 0) (void)::kill(::getpid(), SIGKILL);
  }
  Pauses pauses() { return {&Death::at, this}; }
};

// Everything that can be done with a store, in an arena that is too small for it all.
void use_everything(store::Backend& backend) {
  const auto soon = [] { return Deadline::in(Duration::zero()); };
  const auto put = [&](std::string_view key, uint64_t size, Duration ttl = {}) {
    auto writer = backend.create(key, size, {soon(), ttl});
    if (!writer.ok()) return;
    for (const auto piece : (*writer)->pieces()) {
      if (!piece.empty()) std::memset(piece.data(), static_cast<int>(size % 251), piece.size());
    }
    (void)(*writer)->seal();
  };
  const std::string long_key(700, 'k');
  put("a", 1000);
  put("a", 2000);
  put("empty", 0);
  put(long_key, 5000);
  {
    auto view = backend.get("a", {soon(), false});
    auto long_view = backend.get(long_key, {soon(), false});
    put("a", 3000);
    (void)backend.erase(long_key, 0);
    auto dropped = backend.create("dropped", 4000, {soon(), {}});
  }
  put("brief", 100, std::chrono::nanoseconds(1));
  (void)backend.get("brief", {soon(), false});
  for (int i = 0; i < 12; ++i) put("big" + std::to_string(i), 30'000);
  (void)backend.expire("a", Duration::zero());
  (void)backend.erase("empty", 0);
  for (int i = 0; i < 12; ++i) (void)backend.erase("big" + std::to_string(i), 0);
  (void)backend.usage();
}

class CrashTest : public StoreTest {
 protected:
  CrashTest() {
    options_ = store_options();
    options_.arena.capacity = 256 << 10;
    options_.arena.max_objects = 16;
    options_.eviction = EvictionMode::kEvict;
  }

  // Runs `work` in a child that dies at its end or before. True if it was killed.
  template <typename Work>
  static bool dies(const Work& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      work();
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0)
        << "status " << status;
    return WIFSIGNALED(status);
  }

  // A child opens the store, uses it and closes it, and is killed at the point.
  bool uses_and_dies(PausePoint point, int hits) {
    return dies([&] {
      Death death{point, hits};
      auto backend = store::shm::make_shm_backend(options_, death.pauses());
      if (!backend.ok()) ::_exit(1);
      use_everything(**backend);
      (void)(*backend)->close(Deadline::in(std::chrono::seconds(1)));
    });
  }

  // Whoever comes next finds nothing of the dead, and can use it all.
  void expect_whole(const std::shared_ptr<Arena>& arena, const std::string& when) {
    auto locked = arena->lock();
    ASSERT_TRUE(locked.ok()) << when << ": " << locked.status().to_string();
    (void)arena->sweep_dead(*locked);
    EXPECT_EQ(what_is_wrong(*arena, *locked), "") << when;
    uint32_t members = 0;
    for (const auto& member : arena->map().header().members) members += member.used.get();
    EXPECT_EQ(members, 1U) << when;
    EXPECT_EQ(locked->objects().viewed(), 0U) << when;
  }

  void expect_usable(const std::string& when) {
    auto backend = must(store::shm::make_shm_backend(options_));
    use_everything(*backend);
    auto writer =
        must(backend->create("whole", options_.arena.capacity - 1, {Deadline::in({}), {}}));
    EXPECT_OK(writer->seal()) << when;
    EXPECT_OK(backend->erase("whole", 0)) << when;
    EXPECT_EQ(must(backend->usage()).used_bytes, 0U) << when;
  }

  StoreOptions options_;
};

std::string named(PausePoint point, int hits) {
  return "point " + std::to_string(static_cast<int>(point)) + ", hit " + std::to_string(hits);
}

TEST_F(CrashTest, AtEveryStepTheOthersFindTheArenaWhole) {
  const int hits_to_try = rounds_of(3);
  auto arena = must(Arena::open(options_.arena));
  std::vector<int> never;
  for (int p = 0; p < static_cast<int>(PausePoint::kCount); ++p) {
    const auto point = static_cast<PausePoint>(p);
    int hits = 1;
    while (hits <= hits_to_try && uses_and_dies(point, hits)) {
      expect_whole(arena, named(point, hits));
      expect_usable(named(point, hits));
      if (HasFailure()) return;
      ++hits;
    }
    if (hits == 1) never.push_back(p);
  }
  // Making, recovering and leaving for good are not for a second member: they come below.
  std::vector<int> elsewhere;
  for (const PausePoint point :
       {PausePoint::kMakeLinked, PausePoint::kMakeReserved, PausePoint::kClearViews,
        PausePoint::kClearMember, PausePoint::kRebuildLists, PausePoint::kRebuilt,
        PausePoint::kLeaving, PausePoint::kUnlinked}) {
    elsewhere.push_back(static_cast<int>(point));
  }
  // Reached, or not, as the hashes of this arena happen to wear the index out.
  std::erase(never, static_cast<int>(PausePoint::kRebuildIndex));
  EXPECT_EQ(never, elsewhere);
}

TEST_F(CrashTest, AMakerWhoDiesLeavesNothingThatTheNextOneCannotMake) {
  for (const PausePoint point :
       {PausePoint::kMakeLinked, PausePoint::kMakeReserved, PausePoint::kRebuildLists,
        PausePoint::kRebuildIndex, PausePoint::kRebuilt, PausePoint::kJoinNamed,
        PausePoint::kJoined, PausePoint::kLeaving, PausePoint::kUnlinked}) {
    EXPECT_TRUE(uses_and_dies(point, 1)) << named(point, 1);
    auto arena = must(Arena::open(options_.arena));
    expect_whole(arena, named(point, 1));
    expect_usable(named(point, 1));
  }
}

TEST_F(CrashTest, WhoDiesWhileRecoveringIsRecoveredFrom) {
  auto arena = must(Arena::open(options_.arena));
  for (const PausePoint first : {PausePoint::kPlaceTagged, PausePoint::kSealTagged,
                                 PausePoint::kRetireTagged, PausePoint::kReleaseTagged}) {
    for (const PausePoint second :
         {PausePoint::kRebuildLists, PausePoint::kRebuildIndex, PausePoint::kRebuilt,
          PausePoint::kClearViews, PausePoint::kClearMember, PausePoint::kReleaseTagged}) {
      const std::string when = named(first, 2) + ", then " + named(second, 1);
      EXPECT_TRUE(uses_and_dies(first, 2)) << when;
      EXPECT_TRUE(uses_and_dies(second, 1)) << when;
      expect_whole(arena, when);
      expect_usable(when);
      if (HasFailure()) return;
    }
  }
}

TEST_F(CrashTest, AWaitingGetFindsWhatWasSealedByAProcessThatDiedBeforeItsWakeUp) {
  for (const PausePoint point : {PausePoint::kSealTagged, PausePoint::kSealUnlocked}) {
    StoreProcess waiter(options_);
    waiter.tell("get a 25000");
    ASSERT_EQ(waiter.process().channel().receive_text(std::chrono::milliseconds(20)), std::nullopt);
    EXPECT_TRUE(uses_and_dies(point, 1)) << named(point, 1);
    EXPECT_EQ(waiter.answer(std::chrono::seconds(20)), "ok 1000 247") << named(point, 1);
  }
}

TEST_F(CrashTest, AtAnyMomentTheOthersFindTheArenaWhole) {
  auto arena = must(Arena::open(options_.arena));
  SplitMix64 random(seed());
  for (int round = 0; round < rounds_of(40); ++round) {
    std::array<pid_t, 2> children{};
    for (pid_t& child : children) {
      child = ::fork();
      if (child == 0) {
        auto backend = store::shm::make_shm_backend(options_);
        if (!backend.ok()) ::_exit(1);
        for (;;) use_everything(**backend);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(5000)));
    for (const pid_t child : children) (void)::kill(child, SIGKILL);
    for (const pid_t child : children) EXPECT_EQ(::waitpid(child, nullptr, 0), child);
    expect_whole(arena, "round " + std::to_string(round));
    expect_usable("round " + std::to_string(round));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace stagelink::test
