// Transfers of an IO engine to a target in another process.

#include <thread>

#include "integration/connector/io/io_test.h"
#include "integration/support/unseen.h"

namespace stagelink::test {
namespace {

using moriio::BackendType;
using moriio::IoTransfer;
using moriio::MemoryDesc;
using moriio::StatusCode;
using moriio::StatusRef;

class IoTransferTest : public IoTest, public ::testing::WithParamInterface<BackendType> {
 protected:
  EngineOptions initiator_options() const { return io_options("initiator"); }
  IoPair pair() const {
    return IoPair(make_io_engine(initiator_options()), target_setup(GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Both, IoTransferTest,
                         ::testing::Values(BackendType::kRdma, BackendType::kTcp),
                         [](const auto& of) {
                           return of.param == BackendType::kRdma ? "Shm" : "Tcp";
                         });

StatusCode wait(const StatusRef& status) { return status->wait_for(20s); }

#define EXPECT_SUCCESS(status) EXPECT_EQ(wait(status), StatusCode::kSuccess) << (status)->message()

TEST_P(IoTransferTest, ABatchIsReadRangeByRange) {
  IoPair pair = this->pair();
  const IoBatch batch{{0, 4096, 300'000}, {5, 70'000, 500'000}, {100, 20'000, 400'000}};
  const StatusRef status = pair.session->batch_read(batch.ranges(), 1);
  EXPECT_SUCCESS(status);
  for (size_t i = 0; i < batch.sizes.size(); ++i) {
    const auto read = pair.memory.bytes().subspan(batch.local[i], batch.sizes[i]);
    EXPECT_EQ(first_wrong(read, seed(), batch.remote[i]), std::nullopt) << i;
  }
  EXPECT_EQ(first_not(pair.memory.bytes().subspan(100, 3996), kUntouched), std::nullopt);
  EXPECT_TRUE(pair.memory.canaries_intact());
}

TEST_P(IoTransferTest, ABatchIsWrittenRangeByRange) {
  IoPair pair = this->pair();
  fill_pattern(pair.memory.bytes(), seed() + 1);
  const IoBatch batch{{0, 200'000}, {0, 200'000}, {3, 600'000}};
  EXPECT_SUCCESS(pair.session->batch_write(batch.ranges(), 1));
  EXPECT_EQ(pair.target.first_wrong(0, 3, seed() + 1), std::nullopt);
  EXPECT_EQ(pair.target.first_wrong(3, 199'997, seed()), std::nullopt);
  EXPECT_EQ(pair.target.first_wrong(200'000, 600'000, seed() + 1), std::nullopt);
  EXPECT_EQ(pair.target.first_wrong(800'000, kBytes - 800'000, seed()), std::nullopt);
}

TEST_P(IoTransferTest, AnEmptyBatchAndEmptyRangesSucceed) {
  IoPair pair = this->pair();
  EXPECT_SUCCESS(pair.session->batch_read({}, 1));
  EXPECT_SUCCESS(pair.session->batch_write({}, 2));
  EXPECT_SUCCESS(pair.session->read(kBytes, kBytes, 0, 3));
  EXPECT_EQ(first_not(pair.memory.bytes(), kUntouched), std::nullopt);
}

TEST_P(IoTransferTest, TheTargetIsToldOnceOfEachTransfer) {
  IoPair pair = this->pair();
  EXPECT_SUCCESS(pair.session->read(0, 0, 100, 11));
  EXPECT_SUCCESS(pair.session->write(0, 0, 100, 12));
  EXPECT_EQ(pair.target.pop("initiator", 12), StatusCode::kSuccess);
  EXPECT_EQ(pair.target.pop("initiator", 11), StatusCode::kSuccess);
  EXPECT_FALSE(pair.target.has_notice("initiator", 11));
  EXPECT_FALSE(pair.target.has_notice("initiator", 12));
  EXPECT_FALSE(pair.target.has_notice("somebody", 11));
}

TEST_P(IoTransferTest, NobodyIsToldWithoutNotification) {
  IoPair pair = this->pair();
  ASSERT_OK(pair.engine->create_backend(GetParam(), {.enable_notification = false}));
  auto quiet = must(pair.engine->create_session(pair.local, pair.target.memory()));
  EXPECT_SUCCESS(quiet->read(0, 0, 100, 1));
  EXPECT_SUCCESS(pair.session->read(0, 0, 100, 2));  // Sent after it, so it arrives after it.
  EXPECT_EQ(pair.target.pop("initiator", 2), StatusCode::kSuccess);
  EXPECT_FALSE(pair.target.has_notice("initiator", 1));
}

TEST_P(IoTransferTest, OneIdInFlightTwiceIsTwoTransfers) {
  IoPair pair = this->pair();
  constexpr uint64_t kHalf = kBytes / 2;
  StatusRef first;
  std::thread other([&] { first = pair.session->read(0, 0, kHalf, 7); });
  const StatusRef second = pair.session->read(kHalf, kHalf, kHalf, 7);
  other.join();
  EXPECT_SUCCESS(first);
  EXPECT_SUCCESS(second);
  EXPECT_EQ(first_wrong(pair.memory.bytes(), seed()), std::nullopt);
  for (int i = 0; i < 50; ++i) EXPECT_SUCCESS(pair.session->read(0, 0, 64, 7));
  for (int i = 0; i < 52; ++i) ASSERT_EQ(pair.target.pop("initiator", 7), StatusCode::kSuccess);
  EXPECT_FALSE(pair.target.has_notice("initiator", 7));
}

TEST_P(IoTransferTest, RangesBeyondEitherMemoryRefuseTheWholeBatch) {
  IoPair pair = this->pair();
  constexpr uint64_t kMax = ~uint64_t{0};
  const IoBatch bad[] = {
      {{0, 1}, {0, 0}, {1, kBytes}},      // Local, by one.
      {{0, 0}, {0, 1}, {1, kBytes}},      // Remote, by one.
      {{0, 0}, {0, kBytes + 1}, {1, 0}},  // Even without bytes.
      {{0, kMax}, {0, 0}, {1, 2}},        // The sum does not fit 64 bits.
      {{0, 0}, {0, 0}, {1, kMax}},
  };
  for (const IoBatch& batch : bad) {
    for (const StatusRef& status : {pair.session->batch_read(batch.ranges(), 1),
                                    pair.session->batch_write(batch.ranges(), 1)}) {
      EXPECT_EQ(status->code(), StatusCode::kInvalidArgs);
      EXPECT_NE(status->message().find("length out of range"), std::string::npos)
          << status->message();
    }
  }
  const IoBatch uneven{{0, 0}, {0}, {1, 1}};
  EXPECT_EQ(pair.session->batch_read(uneven.ranges(), 1)->code(), StatusCode::kInvalidArgs);
  EXPECT_EQ(first_not(pair.memory.bytes(), kUntouched), std::nullopt);
  EXPECT_EQ(pair.target.first_wrong(0, kBytes, seed()), std::nullopt);
  EXPECT_SUCCESS(pair.session->read(0, 0, kBytes, 1));  // To the last byte.
  EXPECT_FALSE(pair.target.has_notice("initiator", 2));
}

TEST_P(IoTransferTest, WithoutSessionsEachTransferHasItsStatus) {
  IoPair pair = this->pair();
  const IoBatch good{{0, 100}, {0, 100}, {100, 100}};
  const IoBatch bad{{0}, {kBytes}, {1}};
  MemoryDesc unknown = pair.target.memory();
  unknown.engine_key = "nobody";
  const IoTransfer transfers[] = {{pair.local, pair.target.memory(), good.ranges(), 1},
                                  {pair.local, pair.target.memory(), bad.ranges(), 2},
                                  {pair.local, unknown, good.ranges(), 3},
                                  {pair.target.memory(), pair.local, good.ranges(), 4},
                                  {pair.local, pair.target.memory(), {}, 5}};
  const std::vector<StatusRef> statuses = pair.engine->batch_read(transfers);
  ASSERT_EQ(statuses.size(), std::size(transfers));
  EXPECT_SUCCESS(statuses[0]);
  EXPECT_EQ(statuses[1]->code(), StatusCode::kInvalidArgs);
  EXPECT_EQ(statuses[2]->code(), StatusCode::kNotFound);
  EXPECT_EQ(statuses[3]->code(), StatusCode::kNotFound);
  EXPECT_SUCCESS(statuses[4]);
  EXPECT_EQ(wait_all(statuses, 20s), StatusCode::kInvalidArgs);
  EXPECT_EQ(first_wrong(pair.memory.bytes().first(200), seed()), std::nullopt);
}

TEST_P(IoTransferTest, OverlappingMemoriesAreReachedEachByItsOwnOffsets) {
  IoPair pair = this->pair();
  // A part of the local memory, and one inside that.
  const MemoryDesc half = must(pair.engine->register_memory(pair.memory.data() + 1000, 5000, -1,
                                                            moriio::MemoryLocation::kCpu));
  const MemoryDesc inner = must(pair.engine->register_memory(pair.memory.data() + 3000, 500, -1,
                                                             moriio::MemoryLocation::kCpu));
  EXPECT_NE(half.id, inner.id);
  auto outer_session = must(pair.engine->create_session(half, pair.target.memory()));
  auto inner_session = must(pair.engine->create_session(inner, pair.target.memory()));
  EXPECT_SUCCESS(outer_session->read(0, 0, 5000, 1));
  EXPECT_SUCCESS(inner_session->read(100, 200'000, 400, 2));
  EXPECT_EQ(inner_session->read(101, 0, 400, 3)->code(), StatusCode::kInvalidArgs);
  ASSERT_OK(pair.engine->deregister_memory(half));
  EXPECT_EQ(outer_session->read(0, 0, 1, 4)->code(), StatusCode::kNotFound);
  EXPECT_FALSE(outer_session->alive());
  EXPECT_TRUE(inner_session->alive());
  EXPECT_SUCCESS(inner_session->read(0, 2000, 100, 5));
  const auto bytes = pair.memory.bytes();
  EXPECT_EQ(first_wrong(bytes.subspan(1000, 2100), seed()), std::nullopt);
  EXPECT_EQ(first_wrong(bytes.subspan(3100, 400), seed(), 200'000), std::nullopt);
  EXPECT_EQ(first_wrong(bytes.subspan(3500, 2500), seed(), 2500), std::nullopt);
}

TEST_F(IoTest, MappedMemoryIsReadAndWrittenWhileItsOwnerIsStopped) {
  IoPair pair(make_io_engine(io_options("initiator")), target_setup(BackendType::kRdma));
  pair.target.process().stop();
  EXPECT_SUCCESS(pair.session->read(0, 0, kBytes, 1));
  EXPECT_EQ(first_wrong(pair.memory.bytes(), seed()), std::nullopt);
  fill_pattern(pair.memory.bytes(), seed() + 1);
  EXPECT_SUCCESS(pair.session->write(0, 0, kBytes, 2));
  pair.target.process().resume();
  EXPECT_EQ(pair.target.first_wrong(0, kBytes, seed() + 1), std::nullopt);
  EXPECT_EQ(pair.target.pop("initiator", 2), StatusCode::kSuccess);
}

TEST_F(IoTest, RegisteredMemoryIsReachedWithoutBeingMapped) {
  IoTargetSetup setup = target_setup(BackendType::kRdma);
  setup.allocated = false;
  IoPair pair(make_io_engine(io_options("initiator")), setup);
  EXPECT_SUCCESS(pair.session->read(0, 0, kBytes, 1));
  EXPECT_EQ(first_wrong(pair.memory.bytes(), seed()), std::nullopt);
}

}  // namespace
}  // namespace stagelink::test
