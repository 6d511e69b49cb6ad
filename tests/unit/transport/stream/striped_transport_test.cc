#include "transport/stream/striped_transport.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "base/random.h"
#include "unit/transport/stream/stream_rig.h"

namespace stagelink::transport {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kMin = 64 << 10;

// Holds what is posted until the test ends it.
class FakeChannel final : public PostedTransport {
 public:
  void post(PostedRequest& request) override {
    if (dead) return request.on_done(Status(Reason::kConnectionCut, "dead"));
    posted.push_back(&request);
    if (on_post) on_post(request);
  }
  void cancel(PostedRequest& request, Status why) override { cancels.emplace_back(&request, why); }
  void end(size_t index, Status status = {}) {
    PostedRequest* const request = posted[index];
    posted.erase(posted.begin() + static_cast<ptrdiff_t>(index));
    request->on_done(std::move(status));
  }

  bool dead = false;
  std::function<void(PostedRequest&)> on_post;
  std::vector<PostedRequest*> posted;
  std::vector<std::pair<PostedRequest*, Status>> cancels;
};

class StripedTransportTest : public ::testing::Test {
 protected:
  std::vector<std::shared_ptr<FakeChannel>> channels(size_t count) {
    std::vector<std::shared_ptr<FakeChannel>> made;
    for (size_t i = 0; i < count; ++i) {
      made.push_back(std::make_shared<FakeChannel>());
      striped.add(made.back());
    }
    return made;
  }
  // Of pieces with odd sizes; local addresses are never touched.
  static void fill(TestRequest& request, uint64_t bytes, uint64_t piece) {
    request.held.clear();
    for (uint64_t at = 0; at < bytes; at += piece) {
      const uint64_t size = std::min(piece, bytes - at);
      request.held.push_back({reinterpret_cast<std::byte*>(0x100000 + at), at * 2, size, 3, 0});
    }
    request.held_regions = {{7, 9}};
    request.items = request.held;
    request.remote_regions = request.held_regions;
    request.total_bytes = bytes;
    request.deadline = Deadline::in(10s);
    request.direction = Direction::kRead;
  }

  StripedTransport striped{kMin};
};

TEST_F(StripedTransportTest, SmallRequestGoesWholeToTheIdlestChannel) {
  const auto all = channels(3);
  TestRequest first;
  TestRequest second;
  TestRequest third;
  TestRequest fourth;
  fill(first, 4096, 4096);
  fill(second, 100, 100);
  fill(third, 1000, 1000);
  fill(fourth, 8, 8);
  for (TestRequest* request : {&first, &second, &third, &fourth}) striped.post(*request);
  EXPECT_EQ(all[0]->posted.size(), 1U);
  EXPECT_EQ(all[1]->posted.size(), 2U);  // The one with 100 bytes under way.
  EXPECT_EQ(all[2]->posted.size(), 1U);
  EXPECT_EQ(all[0]->posted[0]->items.data(), first.held.data());
  all[0]->end(0);
  EXPECT_TRUE(first.done());
  EXPECT_TRUE(first.status.ok());
  for (TestRequest* request : {&second, &third, &fourth}) EXPECT_FALSE(request->done());
  all[1]->end(0);
  all[1]->end(0);
  all[2]->end(0);
  for (TestRequest* request : {&second, &third, &fourth}) EXPECT_EQ(request->ended, 1);
}

// The threshold is where cutting begins, and every byte is in exactly one part.
TEST_F(StripedTransportTest, LargeRequestIsCutByBytesWithoutLossOrOverlap) {
  SplitMix64 random(1);
  for (const uint64_t bytes : {kMin - 1, kMin, kMin + 1, uint64_t{1} << 20, uint64_t{999'983}}) {
    for (const uint64_t piece : {uint64_t{77}, uint64_t{4096}, uint64_t{65536}, bytes}) {
      StripedTransport four(kMin);
      std::vector<std::shared_ptr<FakeChannel>> all;
      for (int i = 0; i < 4; ++i) four.add(all.emplace_back(std::make_shared<FakeChannel>()));
      TestRequest request;
      fill(request, bytes, piece);
      four.post(request);
      std::vector<CopyItem> seen;
      uint64_t total = 0;
      for (const auto& channel : all) {
        ASSERT_LE(channel->posted.size(), 1U);
        for (const PostedRequest* part : channel->posted) {
          total += part->total_bytes;
          EXPECT_EQ(part->direction, Direction::kRead);
          EXPECT_EQ(part->remote_regions.data(), request.held_regions.data());
          seen.insert(seen.end(), part->items.begin(), part->items.end());
        }
      }
      EXPECT_EQ(total, bytes);
      EXPECT_EQ(all[1]->posted.empty(), bytes < kMin);
      uint64_t at = 0;
      for (const CopyItem& item : seen) {
        EXPECT_EQ(item.local, reinterpret_cast<std::byte*>(0x100000 + at));
        EXPECT_EQ(item.remote, at / piece * piece * 2 + at % piece);
        EXPECT_EQ(item.remote_index, 3U);
        at += item.bytes;
      }
      EXPECT_EQ(at, bytes);
      for (const auto& channel : all) {
        EXPECT_EQ(request.done(), channel->posted.empty());
        if (!channel->posted.empty()) channel->end(0);
      }
      EXPECT_EQ(request.ended, 1);
      EXPECT_TRUE(request.status.ok());
    }
  }
}

TEST_F(StripedTransportTest, WritesTakeTheFirstChannelWholeAndInOrder) {
  const auto all = channels(3);
  TestRequest large;
  TestRequest small;
  for (auto [request, bytes] :
       {std::pair(&large, uint64_t{1} << 20), std::pair(&small, uint64_t{8})}) {
    fill(*request, bytes, 4096);
    request->direction = Direction::kWrite;
    striped.post(*request);
  }
  ASSERT_EQ(all[0]->posted.size(), 2U);
  EXPECT_EQ(all[0]->posted[0]->total_bytes, uint64_t{1} << 20);
  EXPECT_EQ(all[0]->posted[1]->total_bytes, 8U);
  EXPECT_TRUE(all[1]->posted.empty() && all[2]->posted.empty());
  all[0]->end(0, Status(Reason::kConnectionCut, "cut"));
  EXPECT_EQ(striped.channels(), 2U);
  TestRequest next;
  fill(next, 8, 8);
  next.direction = Direction::kWrite;
  striped.post(next);
  EXPECT_EQ(all[1]->posted.size(), 1U);
  all[0]->end(0);
  all[1]->end(0);
}

TEST_F(StripedTransportTest, FirstFailureCancelsTheOthersAndIsTheOutcome) {
  const auto all = channels(3);
  TestRequest request;
  fill(request, 1 << 20, 4096);
  striped.post(request);
  all[1]->end(0, Status(Reason::kSuperseded, "gone"));
  EXPECT_FALSE(request.done());  // The others may still touch memory.
  for (const size_t other : {0U, 2U}) {
    ASSERT_EQ(all[other]->cancels.size(), 1U);
    EXPECT_EQ(all[other]->cancels[0].first, all[other]->posted[0]);
    EXPECT_EQ(all[other]->cancels[0].second.reason(), Reason::kSuperseded);
  }
  EXPECT_TRUE(all[1]->cancels.empty());
  all[0]->end(0, Status(Reason::kCancelled, "cancelled"));
  EXPECT_FALSE(request.done());
  all[2]->end(0);
  EXPECT_EQ(request.ended, 1);
  EXPECT_EQ(request.status.reason(), Reason::kSuperseded);
}

TEST_F(StripedTransportTest, CancelReachesEveryPartOnceAndWaitsForThem) {
  const auto all = channels(2);
  TestRequest request;
  fill(request, 1 << 20, 4096);
  striped.post(request);
  striped.cancel(request, Status(Reason::kCancelled, "no more"));
  striped.cancel(request, Status(Reason::kTimedOut, "too late to matter"));
  for (const auto& channel : all) ASSERT_EQ(channel->cancels.size(), 1U);
  EXPECT_FALSE(request.done());
  all[0]->end(0, Status(Reason::kCancelled, "no more"));
  all[1]->end(0);  // It was too late for this one.
  EXPECT_EQ(request.ended, 1);
  EXPECT_EQ(request.status.reason(), Reason::kCancelled);
  striped.cancel(request, Status(Reason::kCancelled, "after its end"));
  for (const auto& channel : all) EXPECT_EQ(channel->cancels.size(), 1U);
}

TEST_F(StripedTransportTest, CancelWhilePartsArePostedStopsTheRest) {
  const auto all = channels(3);
  TestRequest request;
  fill(request, 1 << 20, 4096);
  all[0]->on_post = [&](PostedRequest&) {
    striped.cancel(request, Status(Reason::kCancelled, "at once"));
  };
  striped.post(request);
  EXPECT_EQ(all[0]->cancels.size(), 1U);
  EXPECT_TRUE(all[1]->posted.empty());
  EXPECT_TRUE(all[2]->posted.empty());
  EXPECT_FALSE(request.done());
  all[0]->end(0, Status(Reason::kCancelled, "at once"));
  EXPECT_EQ(request.ended, 1);
  EXPECT_EQ(request.status.reason(), Reason::kCancelled);
}

TEST_F(StripedTransportTest, LostChannelIsDroppedAndTheOthersGoOn) {
  const auto all = channels(2);
  all[0]->dead = true;
  TestRequest request;
  fill(request, 1 << 20, 4096);
  striped.post(request);
  EXPECT_TRUE(all[1]->posted.empty());  // The first part had failed before it was its turn.
  EXPECT_EQ(request.ended, 1);
  EXPECT_EQ(request.status.reason(), Reason::kConnectionCut);
  EXPECT_EQ(striped.channels(), 1U);
  TestRequest second;
  fill(second, 1 << 20, 4096);
  striped.post(second);
  ASSERT_EQ(all[1]->posted.size(), 1U);
  EXPECT_EQ(all[1]->posted[0]->total_bytes, uint64_t{1} << 20);
  all[1]->end(0);
  EXPECT_TRUE(second.status.ok());
}

TEST_F(StripedTransportTest, RemovedChannelTakesNoMore) {
  const auto all = channels(2);
  striped.remove(*all[0]);
  EXPECT_EQ(striped.channels(), 1U);
  striped.remove(*all[0]);
  EXPECT_EQ(striped.channels(), 1U);
  striped.remove_all();
  TestRequest request;
  fill(request, 100, 100);
  striped.post(request);
  EXPECT_EQ(request.ended, 1);
  EXPECT_EQ(request.status.reason(), Reason::kConnectionCut);
}

TEST_F(StripedTransportTest, RequestMayBePostedAgainInsideOnDone) {
  const auto all = channels(2);
  TestRequest request;
  int rounds = 0;
  fill(request, 1 << 20, 100);
  request.then = [&] {
    if (++rounds < 5) striped.post(request);
  };
  striped.post(request);
  // Once warm, two sets of parts take turns and nothing is allocated.
  std::set<const CopyItem*> lists;
  for (int round = 0; round < 5; ++round) {
    ASSERT_EQ(all[0]->posted.size(), 1U);
    lists.insert(all[0]->posted[0]->items.data());
    all[0]->end(0);
    all[1]->end(0);
  }
  EXPECT_EQ(rounds, 5);
  EXPECT_EQ(request.ended, 5);
  EXPECT_LE(lists.size(), 2U);
}

// Posting, ending and cancelling from three threads at once; each request ends exactly once.
TEST_F(StripedTransportTest, EveryRequestEndsOnceWhicheverThreadIsFirst) {
  class Ender final : public PostedTransport {
   public:
    void post(PostedRequest& request) override {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(&request);
    }
    void cancel(PostedRequest&, Status) override {}
    void run(const std::atomic<bool>& stop) {
      for (bool more = true; more || !stop.load();) {
        PostedRequest* request = nullptr;
        {
          const std::lock_guard lock(mutex_);
          more = !waiting_.empty();
          if (more) {
            request = waiting_.front();
            waiting_.erase(waiting_.begin());
          }
        }
        if (request != nullptr) request->on_done({});
        if (request == nullptr) std::this_thread::yield();
      }
    }

   private:
    std::mutex mutex_;
    std::vector<PostedRequest*> waiting_;
  };
  std::vector<std::shared_ptr<Ender>> all;
  for (int i = 0; i < 2; ++i) striped.add(all.emplace_back(std::make_shared<Ender>()));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (const auto& ender : all) threads.emplace_back([&, ender] { ender->run(stop); });
  for (int round = 0; round < 500; ++round) {
    TestRequest request;
    fill(request, round % 2 == 0 ? 2 * kMin : 100, 1000);
    striped.post(request);
    if (round % 3 == 0) striped.cancel(request, Status(Reason::kCancelled, "maybe"));
    while (!request.done()) std::this_thread::yield();
    EXPECT_EQ(request.ended, 1);
    EXPECT_TRUE(request.status.ok() || request.status.reason() == Reason::kCancelled);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace stagelink::transport
