#include "connector/moriio/writer/writer.h"

#include <stdexcept>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "integration/support/eventually.h"
#include "unit/connector/moriio/writer/fake_target.h"
#include "unit/connector/zmq/zmq_test.h"

namespace stagelink::moriio {
namespace {

using stagelink::test::eventually;
using test::FakeTarget;
using namespace std::chrono_literals;

// One range for each layer: what the writer was told to write can be read from the batches.
class FakeHost final : public WriterHost {
 public:
  Result<std::optional<Endpoint>> consumer_of(const Allocation&, const WriteTask&) override {
    return consumer;
  }
  Result<std::vector<Move>> plan(const Allocation& allocation,
                                 std::span<const WriteTask> tasks) override {
    plans.fetch_add(1);
    if (throws) throw std::runtime_error("the host's own mistake");
    if (!refusal.ok()) return refusal;
    std::vector<Move> moves;
    for (const WriteTask& task : tasks) {
      const auto layer = static_cast<uint64_t>(std::stoi(task.layer));
      const auto block = static_cast<uint64_t>(allocation.block_ids.front());
      moves.push_back({target, {{layer}, {block}, {100}}});
    }
    return moves;
  }

  std::shared_ptr<FakeTarget> target = std::make_shared<FakeTarget>();
  std::optional<Endpoint> consumer;
  std::atomic<int> plans{0};
  Status refusal;
  bool throws = false;
};

class TicketThatFails final : public LayerTicket {
 public:
  Status synchronize() override { return {Reason::kSystem, "the device is lost"}; }
};

WrapperOptions options_of(Role role, uint32_t tp_size = 1) {
  WrapperOptions options;
  options.table.role = role;
  options.table.tp_size = tp_size;
  return options;
}

class MoriioWriterTest : public ::testing::Test {
 protected:
  ~MoriioWriterTest() override {
    if (writer_ != nullptr) writer_->close();
  }
  void open(const WriterOptions& options = {}) {
    writer_ = std::make_unique<Writer>(options, wrapper_, host_);
  }
  // The consumer's side: it listens and knows the transfer.
  void listen(const std::string& id) {
    const auto endpoint = consumer_.listen({});
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
    ASSERT_TRUE(consumer_.table().expect(id, {}).ok());
    host_->consumer = *endpoint;
  }
  bool schedule(const std::string& id, int layer, std::unique_ptr<LayerTicket> ticket = {}) {
    const auto scheduled = writer_->schedule({.request_id = "request",
                                              .transfer_id = id,
                                              .layer = std::to_string(layer),
                                              .ticket = std::move(ticket)});
    return scheduled.ok() && *scheduled;
  }
  void allocate(const std::string& id, std::vector<int64_t> ids = {7}, bool version = false) {
    RemoteBlocks message{"request", id, std::move(ids), 0, {}};
    if (version) message.extras.version = kMessageVersion;
    message.extras.token = "secret";
    wrapper_->table().accept(message);
  }
  // The reason with which a transfer ended on this side; waits for it.
  Reason ended(const std::string& id) {
    Reason reason = Reason::kSystem;
    EXPECT_TRUE(eventually([&] {
      for (TransferEvent& event : wrapper_->table().take_events()) events_.push_back(event);
      for (const TransferEvent& event : events_) {
        if (event.kind == EventKind::kSent && event.transfer_id == id) {
          reason = event.outcome.reason();
          return true;
        }
      }
      return false;
    })) << id
        << " has not ended";
    return reason;
  }
  // What the consumer was told.
  std::vector<Reason> told(size_t count) {
    std::vector<Reason> reasons;
    EXPECT_TRUE(eventually([&] {
      for (const TransferEvent& event : consumer_.table().take_events()) {
        reasons.push_back(event.outcome.reason());
      }
      return reasons.size() >= count;
    }));
    return reasons;
  }
  void expect_state(const std::string& id, WriteState state) {
    EXPECT_TRUE(eventually([&] { return writer_->state(id) == state; }))
        << write_state_name(writer_->state(id));
  }

  std::shared_ptr<Wrapper> wrapper_ = std::make_shared<Wrapper>(options_of(Role::kProducer));
  Wrapper consumer_{options_of(Role::kConsumer)};
  std::shared_ptr<FakeHost> host_ = std::make_shared<FakeHost>();
  std::unique_ptr<Writer> writer_;
  std::vector<TransferEvent> events_;
};

TEST_F(MoriioWriterTest, TheConsumerIsToldWhenEverySealedLayerHasLanded) {
  open();
  listen("tx");
  EXPECT_TRUE(schedule("tx", 0));
  EXPECT_TRUE(schedule("tx", 1));
  allocate("tx");
  EXPECT_TRUE(eventually([&] { return host_->target->posted() > 0; }));
  EXPECT_TRUE(schedule("tx", 2));
  EXPECT_TRUE(eventually([&] {
    uint64_t ranges = 0;
    for (size_t i = 0; i < host_->target->posted(); ++i) {
      ranges += host_->target->ranges(i).sizes.size();
    }
    return ranges == 3;
  }));
  const size_t batches = host_->target->posted();
  for (size_t i = 0; i < batches; ++i) host_->target->land(i);
  // All that was known has landed; more may come until it is sealed.
  expect_state("tx", WriteState::kInFlight);
  EXPECT_TRUE(consumer_.table().take_events().empty());
  writer_->seal_pending();
  EXPECT_EQ(ended("tx"), Reason::kOk);
  EXPECT_EQ(told(1), std::vector<Reason>{Reason::kOk});
  expect_state("tx", WriteState::kDone);
  EXPECT_EQ(writer_->bytes_written(), 300U);
}

TEST_F(MoriioWriterTest, LayersThatWaitForBlocksAreWrittenTogether) {
  open();
  for (int layer = 0; layer < 40; ++layer) EXPECT_TRUE(schedule("tx", layer));
  writer_->seal_pending();
  host_->target->land_at_once();
  allocate("tx");
  EXPECT_EQ(ended("tx"), Reason::kOk);
  // The thread may have been taking the first ones when the blocks came; the others are one batch.
  ASSERT_LE(host_->target->posted(), 2U);
  size_t ranges = 0;
  for (size_t i = 0; i < host_->target->posted(); ++i) {
    ranges += host_->target->ranges(i).sizes.size();
  }
  EXPECT_EQ(ranges, 40U);
}

TEST_F(MoriioWriterTest, ALayerIsWrittenOnce) {
  open();
  EXPECT_TRUE(schedule("tx", 0));
  EXPECT_FALSE(schedule("tx", 0));
  EXPECT_TRUE(writer_->is_scheduled("tx", "0"));
  EXPECT_FALSE(writer_->is_scheduled("tx", "1"));
  EXPECT_FALSE(writer_->is_scheduled("other", "0"));
}

TEST_F(MoriioWriterTest, BlocksThatCameBeforeTheFirstLayerAreUsed) {
  open();
  allocate("tx");
  host_->target->land_at_once();
  EXPECT_TRUE(schedule("tx", 0));
  writer_->seal_pending();
  EXPECT_EQ(ended("tx"), Reason::kOk);
}

TEST_F(MoriioWriterTest, AConsumerThatNeedsNothingEndsTheTransfer) {
  open();
  EXPECT_TRUE(schedule("tx", 0));
  allocate("tx", {});
  EXPECT_EQ(ended("tx"), Reason::kOk);
  EXPECT_EQ(host_->target->posted(), 0U);
  EXPECT_FALSE(schedule("tx", 1));
}

TEST_F(MoriioWriterTest, OneSlowTransferDelaysNoOther) {
  open();
  EXPECT_TRUE(schedule("slow", 0));
  allocate("slow");
  EXPECT_TRUE(eventually([&] { return host_->target->posted() == 1; }));
  EXPECT_TRUE(schedule("fast", 1));
  allocate("fast");
  EXPECT_TRUE(eventually([&] { return host_->target->posted() == 2; }));
  writer_->seal_pending();
  host_->target->land(1);
  EXPECT_EQ(ended("fast"), Reason::kOk);
  EXPECT_EQ(writer_->state("slow"), WriteState::kInFlight);
}

TEST_F(MoriioWriterTest, BlocksThatNeverComeExpireTheTransfer) {
  open({.defer_timeout = 5ms});
  EXPECT_TRUE(schedule("tx", 0));
  EXPECT_EQ(ended("tx"), Reason::kTimedOut);
  expect_state("tx", WriteState::kExpired);
}

TEST_F(MoriioWriterTest, ABatchThatNeverLandsIsEndedBeforeTheBlocksAreFreed) {
  open({.transfer_timeout = 5ms});
  listen("tx");
  EXPECT_TRUE(schedule("tx", 0));
  allocate("tx", {7}, true);
  EXPECT_EQ(ended("tx"), Reason::kTimedOut);
  EXPECT_TRUE(host_->target->cancelled(0));
  EXPECT_EQ(told(1), std::vector<Reason>{Reason::kTimedOut});
}

TEST_F(MoriioWriterTest, ATransferThatIsNeverSealedExpires) {
  open({.transfer_timeout = 5ms});
  host_->target->land_at_once();
  EXPECT_TRUE(schedule("tx", 0));
  allocate("tx");
  EXPECT_EQ(ended("tx"), Reason::kTimedOut);
}

TEST_F(MoriioWriterTest, AFailedBatchIsToldToAConsumerThatUnderstandsIt) {
  open();
  listen("tx");
  EXPECT_TRUE(schedule("tx", 0));
  writer_->seal_pending();
  allocate("tx", {7}, true);
  EXPECT_TRUE(eventually([&] { return host_->target->posted() == 1; }));
  host_->target->fail(0, Status(Reason::kPeerLost, "gone"));
  EXPECT_EQ(ended("tx"), Reason::kPeerLost);
  EXPECT_EQ(told(1), std::vector<Reason>{Reason::kPeerLost});
  expect_state("tx", WriteState::kFailed);
}

TEST_F(MoriioWriterTest, AConsumerOf032IsNotSentWhatEndsItsListener) {
  open();
  listen("failed");
  EXPECT_TRUE(schedule("failed", 0));
  allocate("failed");  // Without a version.
  EXPECT_TRUE(eventually([&] { return host_->target->posted() == 1; }));
  host_->target->fail(0, Status(Reason::kPeerLost, "gone"));
  EXPECT_EQ(ended("failed"), Reason::kPeerLost);
  // Messages keep their order: the next one is the first there is.
  host_->target->land_at_once();
  ASSERT_TRUE(consumer_.table().expect("next", {}).ok());
  EXPECT_TRUE(schedule("next", 0));
  writer_->seal_pending();
  allocate("next");
  EXPECT_EQ(told(1), std::vector<Reason>{Reason::kOk});
}

TEST_F(MoriioWriterTest, AConsumerThatCannotBeToldIsAFailureThatFreesTheBlocks) {
  const zmq::test::DeadPort gone;
  host_->consumer = gone.endpoint();
  WrapperOptions options = options_of(Role::kProducer);
  options.notify_timeout = 20ms;
  wrapper_ = std::make_shared<Wrapper>(options);
  open();
  host_->target->land_at_once();
  EXPECT_TRUE(schedule("tx", 0));
  writer_->seal_pending();
  allocate("tx");
  EXPECT_EQ(ended("tx"), Reason::kTimedOut);
  expect_state("tx", WriteState::kFailed);
}

TEST_F(MoriioWriterTest, WhatTheHostThrowsEndsOneTransferAndNotTheWriter) {
  open();
  host_->throws = true;
  EXPECT_TRUE(schedule("bad", 0));
  allocate("bad");
  EXPECT_EQ(ended("bad"), Reason::kSystem);
  host_->throws = false;
  host_->target->land_at_once();
  EXPECT_TRUE(schedule("good", 0));
  writer_->seal_pending();
  allocate("good");
  EXPECT_EQ(ended("good"), Reason::kOk);
}

TEST_F(MoriioWriterTest, ALayerThatIsNeverComputedEndsTheTransfer) {
  open();
  EXPECT_TRUE(schedule("tx", 0, std::make_unique<TicketThatFails>()));
  allocate("tx");
  EXPECT_EQ(ended("tx"), Reason::kSystem);
  EXPECT_EQ(host_->target->posted(), 0U);
}

TEST_F(MoriioWriterTest, AFullQueueIsTriedAgainUntilThereIsRoom) {
  open();
  host_->target->busy(5);
  host_->target->land_at_once();
  EXPECT_TRUE(schedule("tx", 0));
  writer_->seal_pending();
  allocate("tx");
  EXPECT_EQ(ended("tx"), Reason::kOk);
  EXPECT_EQ(host_->target->refused(), 5);
}

TEST_F(MoriioWriterTest, AQueueThatStaysFullEndsTheTransferInTime) {
  open({.transfer_timeout = 20ms});
  host_->target->busy(1 << 30);
  EXPECT_TRUE(schedule("tx", 0));
  allocate("tx");
  EXPECT_EQ(ended("tx"), Reason::kTimedOut);
}

TEST_F(MoriioWriterTest, AnAbortEndsATransferInEveryState) {
  open();
  EXPECT_TRUE(schedule("waiting", 0));
  expect_state("waiting", WriteState::kWaitingBlocks);
  EXPECT_TRUE(writer_->abort("waiting", 20s).ok());
  EXPECT_EQ(ended("waiting"), Reason::kCancelled);

  host_->target->busy(1 << 30);
  EXPECT_TRUE(schedule("posting", 0));
  allocate("posting");
  expect_state("posting", WriteState::kPosting);
  EXPECT_TRUE(writer_->abort("posting", 20s).ok());
  EXPECT_EQ(ended("posting"), Reason::kCancelled);

  host_->target->busy(0);
  EXPECT_TRUE(schedule("in flight", 0));
  allocate("in flight");
  expect_state("in flight", WriteState::kInFlight);
  EXPECT_TRUE(writer_->abort("in flight", 20s).ok());
  EXPECT_TRUE(host_->target->cancelled(0));
  EXPECT_EQ(ended("in flight"), Reason::kCancelled);
  EXPECT_TRUE(writer_->abort("in flight", 20s).ok());
  EXPECT_TRUE(writer_->abort("unknown", 20s).ok());
  EXPECT_EQ(writer_->active(), 0U);
}

TEST_F(MoriioWriterTest, ABatchThatCannotBeCancelledKeepsTheBlocksUntilItHasEnded) {
  open();
  EXPECT_TRUE(schedule("tx", 0));
  allocate("tx");
  EXPECT_TRUE(eventually([&] { return host_->target->posted() == 1; }));
  host_->target->may_cancel(0, false);
  EXPECT_EQ(writer_->abort("tx", 20ms).reason(), Reason::kTimedOut);
  EXPECT_FALSE(wrapper_->table().ended("tx"));
  host_->target->may_cancel(0, true);
  EXPECT_EQ(ended("tx"), Reason::kCancelled);
}

TEST_F(MoriioWriterTest, AReleaseStopsTheWriterBeforeTheBlocksAreFreed) {
  open();
  EXPECT_TRUE(schedule("tx", 0));
  allocate("tx");
  EXPECT_TRUE(eventually([&] { return host_->target->posted() == 1; }));
  wrapper_->table().accept(Release{"tx", 1, {}});
  EXPECT_EQ(ended("tx"), Reason::kCancelled);
  EXPECT_TRUE(host_->target->cancelled(0));
}

TEST_F(MoriioWriterTest, ALayerAfterTheSealIsRefused) {
  open();
  EXPECT_TRUE(schedule("tx", 0));
  writer_->seal_pending();
  const auto late = writer_->schedule({.transfer_id = "tx", .layer = "1"});
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().reason(), Reason::kInvalidState);
}

TEST_F(MoriioWriterTest, TheQueueHasABound) {
  open({.max_queued = 2});
  EXPECT_TRUE(schedule("tx", 0));
  EXPECT_TRUE(schedule("tx", 1));
  EXPECT_EQ(writer_->schedule({.transfer_id = "tx", .layer = "2"}).status().reason(),
            Reason::kLimit);
  EXPECT_TRUE(writer_->abort("tx", 20s).ok());
  EXPECT_TRUE(schedule("next", 0));
}

TEST_F(MoriioWriterTest, ClosingEndsWhatIsUnderWay) {
  open();
  EXPECT_TRUE(schedule("waiting", 0));
  EXPECT_TRUE(schedule("in flight", 0));
  allocate("in flight");
  EXPECT_TRUE(eventually([&] { return host_->target->posted() == 1; }));
  writer_->close();
  EXPECT_EQ(ended("waiting"), Reason::kClosed);
  EXPECT_EQ(ended("in flight"), Reason::kClosed);
  EXPECT_TRUE(host_->target->cancelled(0));
  EXPECT_EQ(writer_->schedule({.transfer_id = "tx", .layer = "0"}).status().reason(),
            Reason::kClosed);
}

}  // namespace
}  // namespace stagelink::moriio
