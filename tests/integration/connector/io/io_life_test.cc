// How backends, sessions, statuses and remote engines of an IO engine begin and end.

#include "integration/connector/io/io_test.h"
#include "integration/support/unseen.h"

namespace stagelink::test {
namespace {

using moriio::BackendType;
using moriio::EngineDesc;
using moriio::IoEngine;
using moriio::MemoryDesc;
using moriio::MemoryLocation;
using moriio::StatusCode;
using moriio::StatusRef;

using IoLifeTest = IoTest;

bool says(const StatusRef& status, std::string_view text) {
  return status->message().find(text) != std::string::npos;
}

// A transfer over TCP to a stopped target stays in flight: here for as long as a test wants.
IoTargetSetup over_tcp(IoTargetSetup setup) {
  setup.backend = BackendType::kTcp;
  return setup;
}

TEST_F(IoLifeTest, AnEnginePublishesTheAddressItHasBound) {
  auto engine = make_io_engine(io_options("initiator"));
  const EngineDesc desc = engine->engine_desc();
  EXPECT_EQ(desc.key, "initiator");
  EXPECT_EQ(desc.host, "127.0.0.1");
  EXPECT_NE(desc.port, 0);
  // The port stays when the backend changes what the engine can do.
  ASSERT_OK(engine->create_backend(BackendType::kTcp));
  EXPECT_EQ(engine->engine_desc(), desc);
  // Taken now; a second engine is told so.
  const auto second =
      IoEngine::create("second", {.host = desc.host, .port = desc.port, .engine = io_options("x")});
  EXPECT_REASON(Reason::kPortInUse, second.status());
}

TEST_F(IoLifeTest, KeysAreTextOfABoundedLength) {
  const std::string longest(256, 'k');
  EXPECT_EQ(must(IoEngine::create(longest, {.engine = io_options("x")}))->engine_desc().key,
            longest);
  for (const std::string& key : {std::string(), longest + "k", std::string("a\nb")}) {
    EXPECT_REASON(Reason::kInvalidArgument,
                  IoEngine::create(key, {.engine = io_options("x")}).status());
  }
}

TEST_F(IoLifeTest, BackendsThatAreNotThereAreRefusedByName) {
  auto engine = make_io_engine(io_options("initiator"));
  for (const BackendType type : {BackendType::kXgmi, BackendType::kFabric, BackendType::kUnknown}) {
    const Status status = engine->create_backend(type);
    EXPECT_REASON(Reason::kUnsupported, status);
    EXPECT_NE(status.message().find(moriio::backend_name(type)), std::string_view::npos);
  }
  EXPECT_REASON(Reason::kNotFound, engine->remove_backend(BackendType::kRdma));
  EXPECT_REASON(Reason::kInvalidArgument,
                engine->create_backend(BackendType::kRdma, {.transports = {"carrier pigeon"}}));
  // The engine is as it was.
  EXPECT_OK(engine->create_backend(BackendType::kRdma));
  EXPECT_OK(engine->allocate(1).status());
}

TEST_F(IoLifeTest, OtherTransportsAreRefusedOnceMemoryIsRegistered) {
  auto engine = make_io_engine(io_options("initiator"));
  const PrivateMemory memory(4096);
  (void)register_all(*engine, memory);
  EXPECT_REASON(Reason::kInvalidState, engine->create_backend(BackendType::kTcp));
  EXPECT_OK(engine->create_backend(BackendType::kRdma));
}

TEST_F(IoLifeTest, GpuMemoryAndNoMemoryAreRefused) {
  auto engine = make_io_engine(io_options("initiator"));
  std::byte byte{};
  EXPECT_REASON(Reason::kUnsupported,
                engine->register_memory(&byte, 1, 0, MemoryLocation::kGpu).status());
  EXPECT_REASON(Reason::kInvalidArgument,
                engine->register_memory(nullptr, 1, -1, MemoryLocation::kCpu).status());
  EXPECT_REASON(Reason::kInvalidArgument,
                engine->register_memory(&byte, 0, -1, MemoryLocation::kCpu).status());
}

TEST_F(IoLifeTest, WithoutABackendTransfersAreInABadState) {
  const IoTargetSetup setup = target_setup(BackendType::kRdma);
  IoTarget target(setup);
  auto engine = make_io_engine(io_options("initiator"));
  const PrivateMemory memory(4096);
  const MemoryDesc local = register_all(*engine, memory);
  ASSERT_OK(engine->register_remote_engine(target.engine()));
  EXPECT_REASON(Reason::kInvalidState, engine->create_session(local, target.memory()).status());
  const moriio::IoTransfer transfer{local, target.memory(), {}, 1};
  EXPECT_EQ(engine->batch_read(std::span(&transfer, 1)).front()->code(), StatusCode::kBadState);

  ASSERT_OK(engine->create_backend(BackendType::kRdma));
  EXPECT_EQ(engine->batch_read(std::span(&transfer, 1)).front()->wait(), StatusCode::kSuccess);
  auto session = must(engine->create_session(local, target.memory()));
  EXPECT_TRUE(session->alive());
  ASSERT_OK(engine->remove_backend(BackendType::kRdma));
  EXPECT_FALSE(session->alive());
  EXPECT_EQ(session->read(0, 0, 1, 2)->code(), StatusCode::kBadState);
  EXPECT_EQ(engine->batch_read(std::span(&transfer, 1)).front()->code(), StatusCode::kBadState);
}

TEST_F(IoLifeTest, DeregisteringARemoteEngineEndsItsSessions) {
  IoPair pair(make_io_engine(io_options("initiator")), target_setup(BackendType::kRdma));
  EXPECT_TRUE(pair.session->alive());
  ASSERT_OK(pair.engine->deregister_remote_engine(pair.target.engine()));
  EXPECT_FALSE(pair.session->alive());
  EXPECT_EQ(pair.session->read(0, 0, 1, 1)->code(), StatusCode::kBadState);
  EXPECT_REASON(Reason::kNotFound,
                pair.engine->create_session(pair.local, pair.target.memory()).status());
  EXPECT_REASON(Reason::kNotFound, pair.engine->deregister_remote_engine(pair.target.engine()));
  // The same again is another start.
  ASSERT_OK(pair.engine->register_remote_engine(pair.target.engine()));
  ASSERT_OK(pair.engine->register_remote_engine(pair.target.engine()));
  auto session = must(pair.engine->create_session(pair.local, pair.target.memory()));
  EXPECT_EQ(session->read(0, 0, 1, 1)->wait(), StatusCode::kSuccess);
}

TEST_F(IoLifeTest, ATargetThatIsRestartedUnderItsKeyIsReachedAgain) {
  for (const BackendType backend : {BackendType::kRdma, BackendType::kTcp}) {
    IoTargetSetup setup = target_setup(backend);
    IoPair pair(make_io_engine(io_options("initiator")), setup);
    const MemoryDesc stale = pair.target.memory();
    setup.port = pair.target.engine().port;  // Where it was, so that the address tells nothing.
    pair.target.process().kill_hard();
    EXPECT_TRUE(eventually([&] { return !pair.session->alive(); }));
    EXPECT_EQ(pair.session->read(0, 0, 1, 1)->wait(), StatusCode::kRdmaOp);

    setup.seed = seed() + 1;
    IoTarget next(setup);
    ASSERT_EQ(next.engine().key, pair.target.engine().key);
    // Known only by its new process id...
    ASSERT_OK(pair.engine->register_remote_engine(next.engine()));
    auto session = must(pair.engine->create_session(pair.local, next.memory()));
    EXPECT_EQ(session->read(0, 0, kBytes, 2)->wait(), StatusCode::kSuccess);
    EXPECT_EQ(first_wrong(pair.memory.bytes(), seed() + 1), std::nullopt);
    // ...and what the first life described is told from it.
    EXPECT_REASON(Reason::kSuperseded, pair.engine->create_session(pair.local, stale).status());
    EXPECT_TRUE(session->alive());
    EXPECT_EQ(session->read(0, 0, 1, 3)->wait(), StatusCode::kSuccess);
    ASSERT_OK(pair.engine->close());
  }
}

TEST_F(IoLifeTest, AnEngineNobodyRegisteredAnewIsFoundAtItsOldAddress) {
  IoTargetSetup setup = target_setup(BackendType::kRdma);
  IoPair pair(make_io_engine(io_options("initiator")), setup);
  setup.port = pair.target.engine().port;
  pair.target.process().kill_hard();
  IoTarget next(setup);
  auto session = must(pair.engine->create_session(pair.local, next.memory()));
  EXPECT_EQ(session->read(0, 0, kBytes, 1)->wait(), StatusCode::kSuccess);
}

TEST_F(IoLifeTest, AStatusThatIsDroppedInFlightLetsItsTransferRunOn) {
  IoPair pair(make_io_engine(io_options("initiator")), over_tcp(target_setup(BackendType::kTcp)));
  pair.target.process().stop();
  for (uint64_t id = 0; id < 4; ++id) (void)pair.session->read(id, 0, 1, id);
  {
    const StatusRef big = pair.session->read(4096, 4096, kBytes - 4096, 4);
    EXPECT_EQ(big->wait_for(1ms), StatusCode::kInProgress);
  }
  pair.target.process().resume();
  // After them all, on the same connection or not: the notices say that they have ended.
  for (uint64_t id = 0; id < 5; ++id)
    EXPECT_EQ(pair.target.pop("initiator", id), StatusCode::kSuccess);
  const UnseenByTsan unseen;  // The notices came through the other process.
  EXPECT_EQ(first_wrong(pair.memory.bytes().subspan(4096), seed(), 4096), std::nullopt);
  EXPECT_TRUE(pair.memory.canaries_intact());
}

TEST_F(IoLifeTest, ACancelledTransferTouchesTheMemoryNoMore) {
  IoPair pair(make_io_engine(io_options("initiator")), over_tcp(target_setup(BackendType::kTcp)));
  pair.target.process().stop();
  const StatusRef status = pair.session->read(0, 0, kBytes, 1);
  EXPECT_EQ(status->code(), StatusCode::kInProgress);
  EXPECT_EQ(status->cancel(), StatusCode::kRdmaOp);
  EXPECT_TRUE(says(status, "cancelled")) << status->message();
  fill_pattern(pair.memory.bytes(), seed() + 9);
  pair.target.process().resume();
  EXPECT_EQ(pair.target.pop("initiator", 1), StatusCode::kRdmaOp);
  const StatusRef next = pair.session->read(0, 0, 100, 2);
  EXPECT_EQ(next->wait(), StatusCode::kSuccess) << next->message();
  EXPECT_EQ(first_wrong(pair.memory.bytes().subspan(100), seed() + 9, 100), std::nullopt);
}

TEST_F(IoLifeTest, TooManyTransfersAreRefusedUntilSomeHaveEnded) {
  EngineOptions options = io_options("initiator");
  options.max_transfers = 2;
  IoPair pair(make_io_engine(options), over_tcp(target_setup(BackendType::kTcp)));
  pair.target.process().stop();
  const StatusRef first = pair.session->read(0, 0, 1000, 1);
  const StatusRef second = pair.session->write(2000, 2000, 1000, 2);
  const StatusRef third = pair.session->read(4000, 4000, 1000, 3);
  EXPECT_EQ(third->code(), StatusCode::kRdmaOp);
  EXPECT_TRUE(says(third, "SQ full")) << third->message();
  pair.target.process().resume();
  // Nobody looks at the first two: that they are over is enough to make room.
  EXPECT_TRUE(eventually([&] {
    const StatusRef again = pair.session->read(4000, 4000, 1000, 4);
    return again->wait() == StatusCode::kSuccess;
  }));
  EXPECT_EQ(first->code(), StatusCode::kSuccess);
  EXPECT_EQ(second->code(), StatusCode::kSuccess);
}

TEST_F(IoLifeTest, TheLossOfATargetFailsWhatIsInFlight) {
  IoPair pair(make_io_engine(io_options("initiator")), over_tcp(target_setup(BackendType::kTcp)));
  pair.target.process().stop();
  const StatusRef pending = pair.session->read(0, 0, kBytes, 1);
  EXPECT_EQ(pending->code(), StatusCode::kInProgress);
  pair.target.process().kill_hard();
  EXPECT_EQ(pending->wait(), StatusCode::kRdmaOp);
  EXPECT_FALSE(pending->message().empty());
  const std::vector<StatusRef> all = {pending};
  EXPECT_EQ(wait_all(all, 0s), StatusCode::kRdmaOp);
}

TEST_F(IoLifeTest, APartOfAnAllocationLivesAsLongAsSomebodyHoldsIt) {
  auto engine = make_io_engine(io_options("initiator"));
  ASSERT_OK(engine->create_backend(BackendType::kRdma));
  auto region = must(engine->allocate(kBytes));
  std::byte* const start = region->bytes().data();
  const MemoryDesc part =
      must(engine->register_memory(start + 4096, 8192, -1, MemoryLocation::kCpu));
  const RegionDesc around = must(part.region());
  EXPECT_EQ(around.bytes, kBytes);
  EXPECT_TRUE(around.shareable);
  EXPECT_EQ(part.data - around.address, 4096U);
  // Across the end it is other memory, registered by itself.
  const MemoryDesc beyond =
      must(engine->register_memory(start + kBytes - 4096, 8192, -1, MemoryLocation::kCpu));
  EXPECT_FALSE(must(beyond.region()).shareable);
  region.reset();
  start[4096] = std::byte{1};  // Held by the registration.
  ASSERT_OK(engine->deregister_memory(beyond));
  ASSERT_OK(engine->deregister_memory(part));
  EXPECT_REASON(Reason::kNotRegistered, engine->deregister_memory(part));
}

TEST_F(IoLifeTest, DeregisteringAPartOfAnAllocationEndsItsSessions) {
  IoPair pair(make_io_engine(io_options("initiator")), target_setup(BackendType::kRdma));
  auto region = must(pair.engine->allocate(kBytes));
  const MemoryDesc part = must(
      pair.engine->register_memory(region->bytes().data() + 64, 1000, -1, MemoryLocation::kCpu));
  auto session = must(pair.engine->create_session(part, pair.target.memory()));
  EXPECT_EQ(session->read(8, 0, 992, 1)->wait(), StatusCode::kSuccess);
  EXPECT_EQ(first_wrong(region->bytes().subspan(72, 992), seed()), std::nullopt);
  EXPECT_EQ(first_not(region->bytes().first(72), std::byte{0}), std::nullopt);
  EXPECT_EQ(session->read(9, 0, 992, 2)->code(), StatusCode::kInvalidArgs);
  ASSERT_OK(pair.engine->deregister_memory(part));
  EXPECT_FALSE(session->alive());
  EXPECT_EQ(session->read(0, 0, 1, 3)->code(), StatusCode::kNotFound);
}

TEST_F(IoLifeTest, SessionsAndStatusesMayOutliveTheirEngine) {
  IoPair pair(make_io_engine(io_options("initiator")), over_tcp(target_setup(BackendType::kTcp)));
  pair.target.process().stop();
  const StatusRef pending = pair.session->read(0, 0, kBytes, 1);
  pair.engine.reset();
  EXPECT_TRUE(pending->failed()) << pending->message();
  EXPECT_FALSE(pair.session->alive());
  EXPECT_EQ(pair.session->read(0, 0, 1, 2)->code(), StatusCode::kBadState);
  pair.target.process().resume();
}

TEST_F(IoLifeTest, AfterCloseEverythingAnswersBadState) {
  IoPair pair(make_io_engine(io_options("initiator")), target_setup(BackendType::kRdma));
  ASSERT_OK(pair.engine->close());
  ASSERT_OK(pair.engine->close());
  EXPECT_EQ(pair.session->read(0, 0, 1, 1)->code(), StatusCode::kBadState);
  EXPECT_REASON(Reason::kClosed, pair.engine->create_backend(BackendType::kRdma));
  EXPECT_REASON(Reason::kClosed, pair.engine->register_remote_engine(pair.target.engine()));
  EXPECT_REASON(Reason::kClosed, pair.engine->allocate(1).status());
  EXPECT_EQ(pair.engine->pop_inbound_transfer_status("target", 1), std::nullopt);
}

}  // namespace
}  // namespace stagelink::test
