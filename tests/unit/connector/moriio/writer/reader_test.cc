#include "connector/moriio/reader/reader.h"

#include <gtest/gtest.h>

#include "integration/support/eventually.h"
#include "unit/connector/moriio/writer/fake_target.h"

namespace stagelink::moriio {
namespace {

using stagelink::test::eventually;
using test::FakeTarget;
using namespace std::chrono_literals;

WrapperOptions options_of(Role role) {
  WrapperOptions options;
  options.table.role = role;
  options.table.tp_size = 1;
  return options;
}

class MoriioReaderTest : public ::testing::Test {
 protected:
  void open(const ReaderOptions& options = {}) {
    reader_ = std::make_unique<Reader>(options, wrapper_);
  }
  ReadRequest request(const std::string& id, size_t batches = 1) {
    ReadRequest wanted;
    wanted.transfer_id = id;
    for (size_t i = 0; i < batches; ++i) {
      // Targets of their own, so that the batches are not joined.
      targets_.push_back(std::make_shared<FakeTarget>(targets_.size() + 1));
      wanted.moves.push_back({targets_.back(), {{0}, {0}, {100}}});
    }
    return wanted;
  }
  // The producer listens, and offers the transfer.
  Endpoint offer(const std::string& id) {
    const auto endpoint = producer_.listen({});
    EXPECT_TRUE(endpoint.ok());
    EXPECT_TRUE(producer_.table().expect(id, {.token = "secret", .token_required = true}).ok());
    return *endpoint;
  }
  bool posted(size_t target) {
    return eventually([&] { return targets_[target]->posted() == 1; });
  }
  bool released(const std::string& id) {
    return eventually([&] { return producer_.table().ended(id); });
  }

  std::shared_ptr<Wrapper> wrapper_ = std::make_shared<Wrapper>(options_of(Role::kConsumer));
  Wrapper producer_{options_of(Role::kProducer)};
  std::vector<std::shared_ptr<FakeTarget>> targets_;
  std::unique_ptr<Reader> reader_;
};

TEST_F(MoriioReaderTest, ATransferIsDoneWhenAllItsBatchesAreAndThenReleased) {
  open();
  ReadRequest wanted = request("tx", 3);
  wanted.producers = {offer("tx")};
  wanted.token = "secret";
  ASSERT_TRUE(reader_->start(std::move(wanted)).ok());
  ASSERT_TRUE(posted(0) && posted(1) && posted(2));
  targets_[2]->land(0);
  targets_[0]->land(0);
  EXPECT_EQ(reader_->wait("tx", 20ms).reason(), Reason::kTimedOut);
  EXPECT_FALSE(producer_.table().ended("tx"));
  targets_[1]->land(0);
  EXPECT_TRUE(reader_->wait("tx", 20s).ok());
  EXPECT_TRUE(released("tx"));
  const auto events = wrapper_->table().take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, EventKind::kReceived);
  EXPECT_TRUE(events[0].outcome.ok());
  EXPECT_EQ(reader_->bytes_read(), 300U);
}

TEST_F(MoriioReaderTest, AReadOfNothingReleasesAtOnce) {
  open();
  ReadRequest wanted = request("tx", 0);
  wanted.producers = {offer("tx")};
  wanted.token = "secret";
  ASSERT_TRUE(reader_->start(std::move(wanted)).ok());
  EXPECT_TRUE(reader_->wait("tx", 20s).ok());
  EXPECT_TRUE(released("tx"));
}

TEST_F(MoriioReaderTest, AFailureEndsTheOtherBatchesBeforeItIsReported) {
  open();
  ReadRequest wanted = request("tx", 2);
  wanted.producers = {offer("tx")};
  wanted.token = "secret";
  ASSERT_TRUE(reader_->start(std::move(wanted)).ok());
  ASSERT_TRUE(posted(0) && posted(1));
  targets_[1]->fail(0, Status(Reason::kPeerLost, "gone"));
  EXPECT_EQ(reader_->wait("tx", 20s).reason(), Reason::kPeerLost);
  EXPECT_TRUE(targets_[0]->cancelled(0));
  EXPECT_TRUE(released("tx"));
  EXPECT_EQ(reader_->bytes_read(), 0U);
}

TEST_F(MoriioReaderTest, ATransferPastItsDeadlineIsStopped) {
  open();
  ReadRequest wanted = request("tx");
  wanted.timeout = 5ms;
  ASSERT_TRUE(reader_->start(std::move(wanted)).ok());
  EXPECT_EQ(reader_->wait("tx", 20s).reason(), Reason::kTimedOut);
  EXPECT_TRUE(targets_[0]->cancelled(0));
}

TEST_F(MoriioReaderTest, ACancelReturnsWhenNothingIsUnderWay) {
  open();
  ASSERT_TRUE(reader_->start(request("tx")).ok());
  ASSERT_TRUE(posted(0));
  targets_[0]->may_cancel(0, false);
  EXPECT_EQ(reader_->cancel("tx", 20ms).reason(), Reason::kTimedOut);
  EXPECT_FALSE(wrapper_->table().ended("tx"));
  targets_[0]->may_cancel(0, true);
  EXPECT_TRUE(reader_->cancel("tx", 20s).ok());
  EXPECT_EQ(reader_->wait("tx", 20s).reason(), Reason::kCancelled);
  EXPECT_TRUE(reader_->cancel("tx", 20s).ok());
  EXPECT_TRUE(reader_->cancel("unknown", 20s).ok());
}

TEST_F(MoriioReaderTest, AFullQueueIsTriedAgain) {
  open();
  ReadRequest wanted = request("tx");
  targets_[0]->busy(4);
  targets_[0]->land_at_once();
  ASSERT_TRUE(reader_->start(std::move(wanted)).ok());
  EXPECT_TRUE(reader_->wait("tx", 20s).ok());
  EXPECT_EQ(targets_[0]->refused(), 4);
}

TEST_F(MoriioReaderTest, AQueueThatStaysFullIsAFailureInTime) {
  open();
  ReadRequest wanted = request("tx");
  wanted.timeout = 20ms;
  targets_[0]->busy(1 << 30);
  ASSERT_TRUE(reader_->start(std::move(wanted)).ok());
  EXPECT_EQ(reader_->wait("tx", 20s).reason(), Reason::kTimedOut);
}

TEST_F(MoriioReaderTest, AProducerHearsThatALongReadGoesOn) {
  open({.renew_interval = 1ms});
  ReadRequest wanted = request("tx");
  wanted.producers = {offer("tx")};
  wanted.token = "secret";
  wanted.producers_have_version = true;
  ASSERT_TRUE(reader_->start(std::move(wanted)).ok());
  EXPECT_TRUE(eventually([&] {
    const auto events = producer_.table().take_events();
    return !events.empty() && events.front().kind == EventKind::kRenewed;
  }));
}

TEST_F(MoriioReaderTest, ATransferIsReadOnce) {
  open({.max_active = 1});
  ASSERT_TRUE(reader_->start(request("tx")).ok());
  EXPECT_EQ(reader_->start(request("other")).reason(), Reason::kTooManyTransfers);
  EXPECT_TRUE(reader_->cancel("tx", 20s).ok());
  EXPECT_EQ(reader_->start(request("tx")).reason(), Reason::kAlreadyExists);
  EXPECT_TRUE(reader_->start(request("other")).ok());
}

TEST_F(MoriioReaderTest, ClosingStopsWhatIsUnderWay) {
  open();
  ASSERT_TRUE(reader_->start(request("tx")).ok());
  ASSERT_TRUE(posted(0));
  reader_->close();
  EXPECT_TRUE(targets_[0]->cancelled(0));
  EXPECT_EQ(reader_->wait("tx", 20s).reason(), Reason::kClosed);
  EXPECT_EQ(reader_->start(request("late")).reason(), Reason::kClosed);
}

}  // namespace
}  // namespace stagelink::moriio
