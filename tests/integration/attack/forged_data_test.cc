// A client that is no engine, on the data connection of one: each lie gets its code, moves no byte
// outside what is registered for it, and disturbs nobody (T49).

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include <sys/socket.h>

#include "integration/attack/forged_peer.h"
#include "integration/support/engine_test.h"
#include "wire/batch_header.h"
#include "wire/frame.h"

namespace stagelink::test {
namespace {

using wire::FrameType;

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

// An honest peer on the same engine: reads all the time and looks at each byte.
class HonestReader {
 public:
  HonestReader(const EngineOptions& options, const Engine& owner, const RegionDesc& remote,
               uint64_t seed)
      : memory_(remote.bytes),
        engine_(must(Engine::create(options))),
        local_(must(engine_->register_memory(memory_.data(), memory_.size()))),
        peer_(must(engine_->connect(owner.descriptor()))),
        seed_(seed) {
    const std::array<const Region*, 1> own = {&local_};
    session_.emplace(must(peer_.session(own, std::span(&remote, 1))));
    thread_ = std::thread([this] { run(); });
  }
  HonestReader(const HonestReader&) = delete;
  HonestReader& operator=(const HonestReader&) = delete;
  ~HonestReader() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // What went wrong; at least one read is made before the answer.
  std::string trouble() {
    const uint64_t before = reads_;
    (void)eventually([&] { return reads_ > before; });
    stop_ = true;
    thread_.join();
    return reads_ > before ? trouble_ : "it made no progress; " + trouble_;
  }

 private:
  void run() {
    while (!stop_) {
      memory_.reset();
      auto transfer = session_->read(whole(memory_.size()));
      const Status status = transfer.ok() ? transfer->wait(20s) : transfer.status();
      if (!status.ok()) trouble_ = status.to_string();
      if (status.ok() && first_wrong(memory_.bytes(), seed_)) trouble_ = "wrong bytes";
      ++reads_;
    }
  }

  PrivateMemory memory_;
  std::unique_ptr<Engine> engine_;
  Region local_;
  Peer peer_;
  std::optional<Session> session_;
  const uint64_t seed_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> reads_{0};
  std::string trouble_;  // Read once the thread has ended.
  std::thread thread_;
};

class ForgedDataTest : public EngineTest, public ::testing::WithParamInterface<bool /* tcp */> {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    victim = make_engine("victim");
    memory.emplace(kBytes);
    sealed.emplace(kBytes);
    fill_pattern(memory->bytes(), seed());
    region.emplace(must(victim->register_memory(memory->data(), kBytes)));
    read_only.emplace(
        must(victim->register_memory(sealed->data(), kBytes, {.access = Access::kReadOnly})));
    EngineOptions reader = options("honest");
    reader.transports = {GetParam() ? "tcp" : "unix"};
    honest.emplace(reader, *victim, region->descriptor(), seed());
    forged.emplace(*victim);
    control = dial();
    ASSERT_EQ(forged->greet(control.get(), wire::Role::kControl)->header.type, FrameType::kWelcome);
    data = data_connection();
  }
  void TearDown() override {
    data.reset();
    control.reset();
    forged.reset();
    if (honest.has_value()) {
      EXPECT_EQ(honest->trouble(), "");
    }
    honest.reset();
    EXPECT_TRUE(memory->canaries_intact());
    EXPECT_TRUE(sealed->canaries_intact());
    EXPECT_EQ(first_wrong(memory->bytes(), seed()), std::nullopt);
    EXPECT_EQ(first_not(sealed->bytes(), kUntouched), std::nullopt);
    EXPECT_TRUE(eventually([&] { return metric(*victim, "inbound_peers") == 0; }));
    EXPECT_OK(region->deregister(5s)) << "somebody holds the memory";
    region.reset();
    read_only.reset();
    victim.reset();
    EngineTest::TearDown();
  }

  static UniqueFd dial(const ForgedPeer& peer) {
    return GetParam() ? peer.dial_tcp() : peer.dial_unix();
  }
  UniqueFd dial() const { return dial(*forged); }
  UniqueFd data_connection() const {
    UniqueFd fd = dial();
    EXPECT_EQ(forged->greet(fd.get(), wire::Role::kData)->header.type, FrameType::kWelcome);
    return fd;
  }
  wire::BatchHeader by_region(const RegionDesc& desc, uint64_t offset, uint64_t bytes) const {
    wire::BatchHeader batch;
    batch.timeout_ms = 10'000;
    batch.regions = {{desc.index, desc.generation}};
    batch.ranges = {{.region = 0, .offset = offset, .bytes = bytes}};
    batch.total_bytes = bytes;
    return batch;
  }
  wire::BatchHeader by_address(const std::byte* at, int64_t offset, uint64_t bytes) const {
    wire::BatchHeader batch = by_region({}, 0, bytes);
    batch.by_address = true;
    batch.regions.clear();
    batch.ranges[0].offset = reinterpret_cast<uint64_t>(at) + static_cast<uint64_t>(offset);
    return batch;
  }
  void send(FrameType type, uint64_t id, std::span<const std::byte> payload) {
    const auto header = wire::encode(wire::FrameHeader{
        .type = type, .payload_bytes = static_cast<uint32_t>(payload.size()), .request_id = id});
    std::vector<std::byte> frame(header.begin(), header.end());
    frame.insert(frame.end(), payload.begin(), payload.end());
    size_t sent = 0;
    while (sent < frame.size()) {
      const ssize_t n = ::send(data.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) return;
      if (n > 0) sent += static_cast<size_t>(n);
    }
  }
  // How the request ends; kConnectionCut if the victim hangs up instead.
  Reason outcome(FrameType type, const wire::BatchHeader& batch) {
    const uint64_t id = ++last_id;
    send(type, id, wire::encode(batch));
    if (type == FrameType::kWrite && batch.total_bytes > 0) {
      const std::vector<std::byte> bytes(std::min<uint64_t>(batch.total_bytes, 64), std::byte{1});
      send(FrameType::kData, id, bytes);
      if (bytes.size() < batch.total_bytes) send(FrameType::kCancel, id, {});
    }
    for (;;) {
      auto frame = transport::receive_frame(data.get(), Deadline::in(10s));
      if (!frame.ok()) return frame.status().reason();
      if (frame->header.type != FrameType::kDone) continue;
      EXPECT_EQ(frame->header.request_id, id);
      return must(wire::decode_outcome(frame->payload)).reason;
    }
  }

  std::unique_ptr<Engine> victim;
  std::optional<PrivateMemory> memory;
  std::optional<PrivateMemory> sealed;
  std::optional<Region> region;
  std::optional<Region> read_only;
  std::optional<HonestReader> honest;
  std::optional<ForgedPeer> forged;
  UniqueFd control;
  UniqueFd data;
  uint64_t last_id = 0;
};
INSTANTIATE_TEST_SUITE_P(Sockets, ForgedDataTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Tcp" : "Unix"; });

TEST_P(ForgedDataTest, AddressesOutsideARegistrationAreNotRegistered) {
  const std::byte* const r = memory->data();
  for (const FrameType type : {FrameType::kRead, FrameType::kWrite}) {
    for (const auto& [offset, bytes] : std::vector<std::pair<int64_t, uint64_t>>{
             {-8, 16},                                // Across the beginning,
             {static_cast<int64_t>(kBytes) - 8, 16},  // across the end,
             {-4096, 64},                             // in the canary before it,
             {static_cast<int64_t>(kBytes), 64},      // in the one behind it,
             {-4096, 0}}) {                           // and nothing at all in one.
      EXPECT_EQ(outcome(type, by_address(r, offset, bytes)), Reason::kNotRegistered)
          << offset << " + " << bytes;
    }
    EXPECT_EQ(outcome(type, by_address(nullptr, 0, 8)), Reason::kNotRegistered);
  }
  EXPECT_EQ(outcome(FrameType::kRead, by_address(r, 0, 8)), Reason::kOk);
}

TEST_P(ForgedDataTest, RangesThatWrapAreRefused) {
  const std::byte* const r = memory->data();
  for (const FrameType type : {FrameType::kRead, FrameType::kWrite}) {
    EXPECT_EQ(outcome(type, by_address(r, 8, kMax - 7)), Reason::kOverflow);
    EXPECT_EQ(outcome(type, by_address(nullptr, -8, 8)), Reason::kOverflow);
    EXPECT_EQ(outcome(type, by_address(nullptr, -8, 16)), Reason::kOverflow);
    for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
             {kMax - 7, 16}, {8, kMax - 7}, {kBytes - 8, 16}, {kBytes, 1}, {kBytes + 1, 0}}) {
      EXPECT_EQ(outcome(type, by_region(region->descriptor(), offset, bytes)), Reason::kOutOfBounds)
          << offset << " + " << bytes;
    }
  }
  EXPECT_EQ(outcome(FrameType::kRead, by_region(region->descriptor(), kBytes - 8, 8)), Reason::kOk);
}

TEST_P(ForgedDataTest, AReadOnlyRegionIsNotWritten) {
  EXPECT_EQ(outcome(FrameType::kWrite, by_region(read_only->descriptor(), 0, 64)),
            Reason::kReadOnly);
  EXPECT_EQ(outcome(FrameType::kWrite, by_address(sealed->data(), 0, 64)), Reason::kReadOnly);
  EXPECT_EQ(outcome(FrameType::kRead, by_region(read_only->descriptor(), 0, 64)), Reason::kOk);
}

TEST_P(ForgedDataTest, RegionsThatAreNotOrNoLongerAreToldApart) {
  const PrivateMemory gone(kBytes);
  Region former = must(victim->register_memory(gone.data(), kBytes));
  const RegionDesc stale = former.descriptor();
  ASSERT_OK(former.deregister(5s));
  RegionDesc never = stale;
  never.index += 5;
  for (const FrameType type : {FrameType::kRead, FrameType::kWrite}) {
    EXPECT_EQ(outcome(type, by_region(stale, 0, 64)), Reason::kSuperseded);
    EXPECT_EQ(outcome(type, by_address(gone.data(), 0, 64)), Reason::kNotRegistered);
    EXPECT_EQ(outcome(type, by_region(never, 0, 64)), Reason::kNotRegistered);
    never.index = ~uint32_t{0};
  }
}

// What belongs to another engine means nothing here, whatever it points at.
TEST_P(ForgedDataTest, RegionsOfAnotherEngineMeanNothing) {
  const auto other = make_engine("other");
  const PrivateMemory theirs(kBytes);
  std::vector<Region> regions;
  for (int i = 0; i < 8; ++i) {
    regions.push_back(must(other->register_memory(theirs.data(), kBytes)));
  }
  EXPECT_EQ(outcome(FrameType::kRead, by_region(regions.back().descriptor(), 0, 64)),
            Reason::kNotRegistered);
  EXPECT_EQ(outcome(FrameType::kWrite, by_address(theirs.data(), 0, 64)), Reason::kNotRegistered);
  EXPECT_TRUE(theirs.canaries_intact());
  EXPECT_EQ(first_not(theirs.bytes(), kUntouched), std::nullopt);
}

TEST_P(ForgedDataTest, AHelloForAnotherInstanceIsRefused) {
  const UniqueFd fd = dial();
  const auto answer = forged->greet(fd.get(), wire::Role::kControl, random_instance_id());
  ASSERT_TRUE(answer.has_value());
  ASSERT_EQ(answer->header.type, FrameType::kRefuse);
  EXPECT_EQ(must(wire::decode_outcome(answer->payload)).reason, Reason::kRestarted);
}

TEST_P(ForgedDataTest, ListsBeyondTheBoundEndTheConnectionAtTheirHeader) {
  for (const auto& [type, bytes] :
       std::vector<std::pair<FrameType, uint32_t>>{{FrameType::kRead, wire::kMaxBatchBytes + 1},
                                                   {FrameType::kWrite, ~uint32_t{0}},
                                                   {FrameType::kData, wire::kMaxDataBytes + 1}}) {
    const auto header = wire::encode(wire::FrameHeader{.type = type, .payload_bytes = bytes});
    ASSERT_EQ(::send(data.get(), header.data(), header.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(header.size()));
    EXPECT_TRUE(hangs_up(data.get())) << wire::frame_name(type);
    data = data_connection();
  }
  // Counts inside the list that its bytes do not account for.
  auto batch = wire::encode(by_region(region->descriptor(), 0, 8));
  const uint32_t many = ~uint32_t{0};
  std::copy_n(reinterpret_cast<const std::byte*>(&many), sizeof many, batch.begin() + 20);
  send(FrameType::kRead, 1, batch);
  EXPECT_TRUE(hangs_up(data.get()));
}

TEST_P(ForgedDataTest, TwentyThousandRandomHeadersHarmNobody) {
  SplitMix64 random(seed());
  constexpr int kConnections = kSanitized ? 200 : 2000;
  for (int connection = 0; connection < kConnections; ++connection) {
    std::vector<std::byte> bytes;
    for (int i = 0; i < 10; ++i) {
      // Half of them noise, half of them frames whose fields are.
      auto header =
          wire::encode(wire::FrameHeader{.type = static_cast<FrameType>(random.below(20)),
                                         .payload_bytes = static_cast<uint32_t>(random.below(64)),
                                         .request_id = random.below(4)});
      if (random.below(2) == 0) {
        for (std::byte& byte : header) byte = static_cast<std::byte>(random.next());
      }
      bytes.insert(bytes.end(), header.begin(), header.end());
    }
    (void)::send(data.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::shutdown(data.get(), SHUT_WR);
    ASSERT_TRUE(hangs_up(data.get()));
    data = data_connection();
  }
  EXPECT_GT(metric(*victim, "failures_total", "frame"), kConnections / 2);
}

// A guest that sends a byte now and then does not stay longer than one that sends nothing.
TEST_P(ForgedDataTest, SlowSilentAndHalfSentHellosAreDismissedInTime) {
  EngineOptions options = this->options("hasty");
  options.connect_timeout = 500ms;  // How long a guest may take for its hello.
  const auto hasty = must(Engine::create(options));
  const ForgedPeer guest(*hasty);
  const auto since = std::chrono::steady_clock::now();
  const UniqueFd silent = dial(guest);
  const UniqueFd half = dial(guest);
  guest.half_greet(half.get());
  const UniqueFd slow = dial(guest);
  auto hello = guest.hello(wire::Role::kControl);
  const auto header = wire::encode(wire::FrameHeader{
      .type = FrameType::kHello, .payload_bytes = static_cast<uint32_t>(hello.size())});
  hello.insert(hello.begin(), header.begin(), header.end());
  size_t sent = 0;
  bool gone = false;
  for (; sent < hello.size() && !gone; ++sent) {
    (void)::send(slow.get(), &hello[sent], 1, MSG_NOSIGNAL);
    gone = hangs_up(slow.get(), 20ms);
  }
  EXPECT_TRUE(gone) << "a hello that took " << hello.size() * 20 << " ms was heard to its end";
  EXPECT_LT(sent, hello.size());
  EXPECT_TRUE(hangs_up(silent.get()));
  EXPECT_TRUE(hangs_up(half.get()));
  EXPECT_GE(std::chrono::steady_clock::now() - since, 400ms);
  EXPECT_EQ(metric(*hasty, "failures_total", "connect_timeout"), 3);
}

// The same on a connection that has been greeted: half a frame holds nobody up.
TEST_P(ForgedDataTest, HalfFramesOnAGreetedConnectionHoldNobodyUp) {
  const auto batch = wire::encode(by_region(region->descriptor(), 0, 64));
  const auto header = wire::encode(wire::FrameHeader{
      .type = FrameType::kRead, .payload_bytes = static_cast<uint32_t>(batch.size())});
  ASSERT_EQ(::send(data.get(), header.data(), header.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(header.size()));
  ASSERT_EQ(::send(data.get(), batch.data(), 7, MSG_NOSIGNAL), 7);
  EXPECT_EQ(honest->trouble(), "");
  honest.reset();
}

}  // namespace
}  // namespace stagelink::test
