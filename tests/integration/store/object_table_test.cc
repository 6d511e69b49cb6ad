// The table of objects by itself: no lock, one owner.

#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/random.h"
#include "integration/store/arena_check.h"
#include "integration/store/store_test.h"
#include "store/shm/shm_backend.h"

namespace stagelink::test {
namespace {

using store::shm::Arena;
using store::shm::Grave;
using store::shm::kNone;
using store::shm::ObjectTable;
using store::shm::Tag;

class ObjectTableTest : public StoreTest {
 protected:
  void make(uint64_t capacity, uint32_t objects) {
    ArenaOptions options = store_options().arena;
    options.capacity = capacity;
    options.max_objects = objects;
    arena_ = must(Arena::open(options));
    locked_.emplace(must(arena_->lock()));
  }
  void TearDown() override {
    locked_.reset();
    arena_.reset();
    StoreTest::TearDown();
  }
  ObjectTable& table() { return locked_->objects(); }
  uint32_t place(std::string_view key, uint64_t size) {
    return table().place({key, arena_->map().hash_of(key), size, arena_->member()});
  }

  std::shared_ptr<Arena> arena_;
  std::optional<Arena::Locked> locked_;
};

TEST_F(ObjectTableTest, KeysOfOneHashAreToldApart) {
  make(64 << 10, 8);
  constexpr uint64_t kHash = 0x123456789abcdef0;
  std::map<std::string, uint32_t> slots;
  for (const char* key : {"one", "two", "three"}) {
    slots[key] = table().place({key, kHash, 100, arena_->member()});
    table().seal(slots[key], 1, 0);
  }
  for (const auto& [key, slot] : slots) EXPECT_EQ(table().find(kHash, key), slot);
  EXPECT_EQ(table().find(kHash, "four"), kNone);
  table().retire(slots["two"], Grave::kEmpty);
  EXPECT_EQ(table().find(kHash, "two"), kNone);
  EXPECT_EQ(table().find(kHash, "three"), slots["three"]);
}

TEST_F(ObjectTableTest, AHeapOfManyHolesIsUsedToTheLastByte) {
  make(64 << 10, 64);
  std::vector<uint32_t> slots;
  for (int i = 0; i < 16; ++i) slots.push_back(place("k" + std::to_string(i), 4096));
  EXPECT_EQ(place("more", 1), kNone);
  for (size_t i = 0; i < 16; i += 2) table().release(slots[i]);
  EXPECT_EQ(place("two", 4097), kNone) << "no gap is that large";
  for (int i = 0; i < 8; ++i) EXPECT_NE(place("again" + std::to_string(i), 4096), kNone);
  EXPECT_EQ(place("more", 1), kNone);
  EXPECT_NE(place("nothing", 0), kNone);
  EXPECT_EQ(what_is_wrong(*arena_, *locked_), "");
}

// Against a model that knows sizes and keys only; the checker knows the rest.
TEST_F(ObjectTableTest, WhateverIsDoneTheListsAreWhatTheSlotsSay) {
  make(256 << 10, 32);
  SplitMix64 random(seed());
  std::map<std::string, uint32_t> sealed;
  std::vector<uint32_t> writing;
  std::set<uint32_t> viewed;
  for (int step = 0; step < 3000; ++step) {
    const std::string key = "key" + std::to_string(random.below(24));
    switch (random.below(6)) {
      case 0:
      case 1: {
        const uint32_t slot = place(key, random.below(5) * random.below(10'000));
        if (slot == kNone) {
          (void)table().evict(16'000);
          for (auto at = sealed.begin(); at != sealed.end();) {
            const bool there = table().find(arena_->map().hash_of(at->first), at->first) != kNone;
            at = there ? std::next(at) : sealed.erase(at);
          }
        } else {
          writing.push_back(slot);
        }
        break;
      }
      case 2:
        if (writing.empty()) break;
        sealed[arena_->map().key_of(arena_->map().slot(writing.back()))] = writing.back();
        table().seal(writing.back(), 1, 0);
        writing.pop_back();
        break;
      case 3:
        if (writing.empty()) break;
        table().release(writing.front());
        writing.erase(writing.begin());
        break;
      case 4:
        if (sealed.count(key) == 0) break;
        if (random.below(2) == 0) {
          const uint32_t slot = sealed[key];
          if (arena_->begin_view(slot, arena_->map().tag(slot))) viewed.insert(slot);
        }
        table().retire(sealed[key], Grave::kEmpty);
        sealed.erase(key);
        break;
      default:
        if (random.below(4) == 0) {
          locked_.reset();  // Ending a view takes the lock.
          for (const uint32_t slot : viewed) arena_->end_view(slot);
          viewed.clear();
          locked_.emplace(must(arena_->lock()));
        }
        if (random.below(8) == 0) {
          EXPECT_OK(table().rebuild());
        }
        break;
    }
    for (const auto& [name, slot] : sealed) {
      ASSERT_EQ(table().find(arena_->map().hash_of(name), name), slot) << "step " << step;
    }
    if (step % 10 != 0) continue;
    ASSERT_EQ(what_is_wrong(*arena_, *locked_), "") << "step " << step;
  }
  locked_.reset();
  for (const uint32_t slot : viewed) arena_->end_view(slot);
  locked_.emplace(must(arena_->lock()));
  for (const uint32_t slot : writing) table().release(slot);
}

TEST_F(ObjectTableTest, AnIndexWornByManyErasuresIsMadeAnew) {
  make(64 << 10, 64);
  const uint32_t epoch = arena_->map().header().index_epoch.load();
  for (int i = 0; i < 2000; ++i) {
    const uint32_t slot = place("key" + std::to_string(i), 10);
    ASSERT_NE(slot, kNone);
    table().seal(slot, 1, 0);
    if (i >= 32) {
      const std::string old = "key" + std::to_string(i - 32);
      const uint32_t gone = table().find(arena_->map().hash_of(old), old);
      ASSERT_NE(gone, kNone) << old;
      table().retire(gone, Grave::kEmpty);
    }
  }
  EXPECT_GT(arena_->map().header().index_epoch.load(), epoch);
  EXPECT_EQ(what_is_wrong(*arena_, *locked_), "");
}

TEST_F(ObjectTableTest, DamageIsFoundByItsUserAndMendedFromTheSlots) {
  make(64 << 10, 16);
  const uint32_t slot = place("key", 1000);
  table().seal(slot, 1, 0);
  auto& header = arena_->map().header();
  header.oldest.set(12345);
  header.free_head.set(777);
  for (auto& head : header.gap_heads) head.set(999);
  for (auto& bits : header.gap_bits) bits.set(~uint64_t{0});
  EXPECT_EQ(place("other", 100), kNone);
  EXPECT_TRUE(arena_->map().is_damaged());
  locked_.reset();
  locked_.emplace(must(arena_->lock()));
  EXPECT_EQ(what_is_wrong(*arena_, *locked_), "");
  EXPECT_EQ(header.recoveries.get(), 1U);
  EXPECT_NE(place("other", 100), kNone);
  EXPECT_EQ(table().find(arena_->map().hash_of("key"), "key"), slot);
}

TEST_F(ObjectTableTest, SlotsThatContradictEachOtherEndTheArena) {
  make(64 << 10, 16);
  const uint32_t first = place("first", 1000);
  const uint32_t second = place("second", 1000);
  arena_->map().slot(second).offset.set(arena_->map().slot(first).offset.get() + 64);
  arena_->map().damaged();
  locked_.reset();
  EXPECT_REASON(Reason::kCorrupt, arena_->lock().status());
  EXPECT_REASON(Reason::kCorrupt, arena_->lock().status());
  EXPECT_REASON(Reason::kCorrupt, ObjectStore::open(store_options()).status());
  arena_.reset();
  EXPECT_EQ(std::remove((folder() + "/" + files().front()).c_str()), 0);
}

// The C library ends the process when it locks a mutex of such a kind.
TEST_F(ObjectTableTest, ALockThatIsWrittenOverIsRefusedAndEndsNoProcess) {
  make(64 << 10, 16);
  auto& lock = arena_->map().header().lock.__data;
  const int own_kind = lock.__kind;
  for (const int kind : {0, 2, 64, own_kind | 32, -1}) {
    lock.__kind = kind;  // While it is held,
    locked_.reset();     // which its holder mends.
    EXPECT_EQ(lock.__kind, own_kind);
    lock.__kind = kind;
    EXPECT_REASON(Reason::kCorrupt, arena_->lock().status());
    EXPECT_FALSE(arena_->try_lock().has_value());
    lock.__kind = own_kind;
    locked_.emplace(must(arena_->lock()));
  }
}

// What another store does in the middle of a get, once.
struct Meanwhile {
  store::shm::PausePoint point;
  std::function<void()> act;
  static void at(store::shm::PausePoint point, void* context) {
    auto* meanwhile = static_cast<Meanwhile*>(context);
    if (point == meanwhile->point && meanwhile->act) std::exchange(meanwhile->act, nullptr)();
  }
};

class ViewRaceTest : public StoreTest {
 protected:
  Result<store::ViewPtr> get_while(store::shm::PausePoint point, std::function<void()> act) {
    meanwhile_ = {point, std::move(act)};
    backend_ = must(store::shm::make_shm_backend(store_options(), {&Meanwhile::at, &meanwhile_}));
    auto view = backend_->get("key", {Deadline::in({}), false});
    EXPECT_EQ(meanwhile_.act, nullptr) << "it never came by";
    return view;
  }
  void TearDown() override {
    backend_.reset();
    StoreTest::TearDown();
  }

  Meanwhile meanwhile_{store::shm::PausePoint::kCount, nullptr};
  std::shared_ptr<store::Backend> backend_;
};

TEST_F(ViewRaceTest, ASlotThatIsTakenAgainBeforeTheBitStandsIsNotTakenForTheOldOne) {
  auto other = open_store();
  const uint64_t old = must(other->put("key", filled(1000, 1)));
  uint64_t fresh = 0;
  auto view = get_while(store::shm::PausePoint::kViewFound, [&] {
    EXPECT_OK(other->erase("key", old));
    fresh = must(other->put("key", filled(500, 2)));
  });
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ((*view)->generation(), fresh);
  EXPECT_EQ((*view)->bytes().size(), 500U);
  EXPECT_TRUE(all_are((*view)->bytes(), 2));
}

TEST_F(ViewRaceTest, AnObjectThatGoesWhenTheBitStandsKeepsItsMemoryUntilItIsGone) {
  auto other = open_store();
  must(other->put("key", filled(5 << 20, 1)));
  PutOptions at_once;
  at_once.timeout = Duration::zero();
  auto view = get_while(store::shm::PausePoint::kViewCounted, [&] {
    EXPECT_OK(other->erase("key"));
    EXPECT_REASON(Reason::kNoSpace, other->create("more", 5 << 20, at_once).status());
  });
  EXPECT_REASON(Reason::kNotFound, view.status());
  EXPECT_OK(other->create("more", 5 << 20, at_once).status());
}

}  // namespace
}  // namespace stagelink::test
