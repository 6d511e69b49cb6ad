// Write mode and read mode from the first message to the last, with the bytes in another process.

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "connector/moriio/move/session_target.h"
#include "connector/moriio/reader/reader.h"
#include "connector/moriio/writer/writer.h"
#include "integration/support/engine_test.h"

namespace stagelink::test {
namespace {

using moriio::EventKind;
using moriio::Move;
using moriio::Reader;
using moriio::ReadRequest;
using moriio::Role;
using moriio::TransferEvent;
using moriio::Wrapper;
using moriio::Writer;

constexpr uint64_t kLayer = 256 << 10;  // All of them are below stripe_min_bytes.
constexpr uint64_t kLayers = 4;
constexpr std::byte kValue{0x5a};

moriio::WrapperOptions options_of(Role role) {
  moriio::WrapperOptions options;
  options.table.role = role;
  options.table.tp_size = 1;
  return options;
}

// Layer i is the i-th piece of both memories.
class PieceHost final : public moriio::WriterHost {
 public:
  PieceHost(std::shared_ptr<moriio::MoveTarget> target, Endpoint consumer)
      : target_(std::move(target)), consumer_(std::move(consumer)) {}
  Result<std::optional<Endpoint>> consumer_of(const moriio::Allocation&,
                                              const moriio::WriteTask&) override {
    return std::optional(consumer_);
  }
  Result<std::vector<Move>> plan(const moriio::Allocation&,
                                 std::span<const moriio::WriteTask> tasks) override {
    std::vector<Move> moves;
    for (const moriio::WriteTask& task : tasks) {
      const uint64_t offset = kLayer * std::stoull(task.layer);
      moves.push_back({target_, {{offset}, {offset}, {kLayer}}});
    }
    return moves;
  }

 private:
  const std::shared_ptr<moriio::MoveTarget> target_;
  const Endpoint consumer_;
};

class MoriioModesTest : public PathTest {
 protected:
  void TearDown() override {
    producer_->close();
    consumer_->close();
    PathTest::TearDown();
  }
  std::unique_ptr<Link> make_link() const {
    return std::make_unique<Link>(reader_options("reader"), options("owner"), path(),
                                  kLayers * kLayer);
  }
  // Of the link's session, which outlives it.
  static std::shared_ptr<moriio::MoveTarget> target_of(Link& link) {
    return moriio::make_session_target(
        std::shared_ptr<Session>(std::shared_ptr<void>(), &link.session));
  }
  static ReadRequest read_all(Link& link, const std::string& id) {
    ReadRequest request;
    request.transfer_id = id;
    request.moves = {{target_of(link), {{0}, {0}, {kLayers * kLayer}}}};
    return request;
  }
  std::unique_ptr<Writer> make_writer(Link& link, const moriio::WriterOptions& options = {}) {
    const Endpoint consumer = must(consumer_->listen({}));
    return std::make_unique<Writer>(options, producer_,
                                    std::make_shared<PieceHost>(target_of(link), consumer));
  }
  void write_all(Writer& writer, const std::string& id) {
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(
          must(writer.schedule({.transfer_id = id, .layer = std::to_string(layer), .ticket = {}})));
    }
    writer.seal(id);
  }
  // The consumer tells the producer, through its listener, where the blocks go.
  void allocate(const std::string& id) {
    moriio::RemoteBlocks message{"request", id, {1}, 0, {}};
    message.extras.version = moriio::kMessageVersion;
    ASSERT_OK(consumer_->table().expect(id, {}));
    ASSERT_OK(consumer_->notify_and_wait(must(producer_->listen({})), message, 20s));
  }
  // The next event of a side; waits for it.
  static TransferEvent next(Wrapper& side) {
    std::vector<TransferEvent> events;
    EXPECT_TRUE(eventually(
        [&] {
          events = side.table().take_events();
          return !events.empty();
        },
        30s));
    EXPECT_EQ(events.size(), 1U);
    return events.empty() ? TransferEvent() : events.front();
  }

  const std::shared_ptr<Wrapper> producer_ = std::make_shared<Wrapper>(options_of(Role::kProducer));
  const std::shared_ptr<Wrapper> consumer_ = std::make_shared<Wrapper>(options_of(Role::kConsumer));
};
INSTANTIATE_TEST_SUITE_P(Both, MoriioModesTest, ::testing::Values(Path::kShm, Path::kTcp),
                         path_name);

TEST_P(MoriioModesTest, WhenAWriteIsDoneEveryByteIsThere) {
  const auto link = make_link();
  const auto writer = make_writer(*link);
  for (int round = 1; round <= 20; ++round) {
    const auto value = static_cast<std::byte>(round);
    const std::string id = fmt::format("tx-{}", round);
    std::memset(link->local.bytes().data(), round, link->local.bytes().size());
    write_all(*writer, id);
    allocate(id);
    const TransferEvent received = next(*consumer_);
    EXPECT_EQ(received.transfer_id, id);
    ASSERT_OK(received.outcome);
    EXPECT_EQ(link->owner.first_not(link->remote, value), kNone) << id;
    const TransferEvent sent = next(*producer_);
    EXPECT_EQ(sent.transfer_id, id);
    EXPECT_OK(sent.outcome);
  }
}

TEST_P(MoriioModesTest, WhenAReadIsDoneEveryByteIsHereAndTheProducerIsReleased) {
  const auto link = make_link();
  Reader reader({}, consumer_);
  const Endpoint producer = must(producer_->listen({}));
  link->owner.set(link->remote, kValue);
  ASSERT_OK(producer_->table().expect("tx", {.token = "secret", .token_required = true}));
  ReadRequest request = read_all(*link, "tx");
  request.producers = {producer};
  request.token = "secret";
  ASSERT_OK(reader.start(std::move(request)));
  ASSERT_OK(reader.wait("tx", 30s));
  const auto bytes = link->local.bytes();
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kValue; }));
  EXPECT_OK(next(*producer_).outcome);
  EXPECT_OK(next(*consumer_).outcome);
}

// Over TCP only: mapped memory is moved without the owner.
class MoriioLossTest : public MoriioModesTest {};
INSTANTIATE_TEST_SUITE_P(Socket, MoriioLossTest, ::testing::Values(Path::kTcp), path_name);

TEST_P(MoriioLossTest, OneDeadPeerEndsItsOwnTransferAndNoOther) {
  const auto dead = make_link();
  const auto healthy = make_link();
  healthy->owner.set(healthy->remote, kValue);
  dead->owner.process().stop();
  Reader reader({}, consumer_);
  ReadRequest lost = read_all(*dead, "lost");
  lost.timeout = 1s;
  ASSERT_OK(reader.start(std::move(lost)));
  for (int i = 0; i < 31; ++i) {
    ASSERT_OK(reader.start(read_all(*healthy, fmt::format("tx-{}", i))));
  }
  for (int i = 0; i < 31; ++i) EXPECT_OK(reader.wait(fmt::format("tx-{}", i), 60s));
  const Status outcome = reader.wait("lost", 60s);
  EXPECT_FALSE(outcome.ok());
  EXPECT_TRUE(outcome.code() == Code::kTimedOut || outcome.code() == Code::kUnreachable)
      << outcome.to_string();
  dead->owner.process().resume();
}

TEST_P(MoriioLossTest, APeerThatIsKilledEndsAllItsTransfersOnceWithAShortLog) {
  ::testing::internal::CaptureStderr();
  {
    const auto link = make_link();
    link->owner.process().stop();
    const auto writer = make_writer(*link);
    for (int i = 0; i < 32; ++i) {
      write_all(*writer, fmt::format("tx-{}", i));
      allocate(fmt::format("tx-{}", i));
    }
    EXPECT_TRUE(eventually([&] { return writer->batches_posted() >= 32; }));
    link->owner.process().kill_hard();
    std::vector<std::string> sent;
    EXPECT_TRUE(eventually(
        [&] {
          for (const TransferEvent& event : producer_->table().take_events()) {
            EXPECT_FALSE(event.outcome.ok());
            sent.push_back(event.transfer_id);
          }
          return sent.size() >= 32;
        },
        60s));
    EXPECT_EQ(writer->active(), 0U);
    std::sort(sent.begin(), sent.end());
    EXPECT_EQ(std::unique(sent.begin(), sent.end()), sent.end());
    // Each failure is told to the consumer, once.
    size_t received = 0;
    EXPECT_TRUE(eventually([&] {
      received += consumer_->table().take_events().size();
      return received >= 32;
    }));
    EXPECT_EQ(received, 32U);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 200) << log;
}

TEST_P(MoriioLossTest, AnAbortInFlightReturnsAndLeavesTheMemoryToItsOwner) {
  const auto link = make_link();
  link->owner.process().stop();
  const auto writer = make_writer(*link);
  write_all(*writer, "tx");
  allocate("tx");
  EXPECT_TRUE(eventually([&] { return writer->batches_posted() == 1; }));
  ASSERT_OK(writer->abort("tx", 30s));
  EXPECT_REASON(Reason::kCancelled, next(*producer_).outcome);
  EXPECT_REASON(Reason::kCancelled, next(*consumer_).outcome);
  link->owner.process().resume();
}

}  // namespace
}  // namespace stagelink::test
