#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/pull/pull_groups.h"
#include "cli/bench/pull/pull_pair.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "connector/pull/messages/omni_messages.h"
#include "connector/zmq/listener.h"

namespace stagelink::cli::bench {

namespace {

constexpr uint64_t kPullSmallBytes = 4096;
constexpr uint32_t kPullRounds = 3000;
constexpr uint32_t kPullWarmUps = 100;
constexpr uint64_t kPullSmallPool = 8 << 20;
constexpr double kPullSmallTargetUs = 60;
constexpr double kOverRoundTrip = 1.5;
constexpr double kOverRoundTripUs = 30;

std::string pull_key(uint32_t round) { return fmt::format("request-{}@0_1", round); }

Status lost_process() { return Status(Reason::kTimedOut, "the other process is lost"); }

// Puts a payload for each turn.
Status put_by_turns(pull::PullConnector& connector, PairPage& page) {
  const std::vector<std::byte> from(kPullSmallBytes, std::byte{7});
  const std::span<const std::byte> piece = from;
  for (uint32_t round = 0; round < kPullRounds; ++round) {
    if (!page.wait_for(2 * round + 1)) return Status(Reason::kTimedOut, "no turn");
    SL_TRY(connector.put(pull_key(round), std::span(&piece, 1)).status());
    page.set(2 * round + 2);
  }
  return page.wait_for(2 * kPullRounds + 1) ? Status() : Status(Reason::kTimedOut, "no turn");
}

// Whatever gets the payload of one round; true if it is right.
using GetRound = std::function<Result<bool>(const std::string& key)>;

Result<double> median_get_us(PullPair& pair, const GetRound& get) {
  std::vector<double> took_us;
  for (uint32_t round = 0; round < kPullRounds; ++round) {
    pair.page().set(2 * round + 1);
    if (!pair.page().wait_for(2 * round + 2)) return lost_process();
    const std::string key = pull_key(round);
    const double start_us = now_us();
    SL_ASSIGN(const bool right, get(key));
    if (round >= kPullWarmUps) took_us.push_back(now_us() - start_us);
    if (!right) return Status(Reason::kCorrupt, "not what was put");
  }
  pair.page().set(2 * kPullRounds + 1);
  return percentile(std::move(took_us), 0.5);
}

bool is_payload(std::span<const std::byte> bytes) {
  return bytes.size() == kPullSmallBytes && bytes.front() == std::byte{7} &&
         bytes.back() == std::byte{7};
}

Result<double> own_us() {
  SL_ASSIGN(const auto pair,
            PullPair::start(bench_pull_options(pull::Role::kSender, kPullSmallPool), put_by_turns));
  SL_ASSIGN(const auto receiver,
            pull::PullConnector::create(bench_pull_options(pull::Role::kReceiver, kPullSmallPool)));
  const pull::PullMetadata sender = pair->address();
  return median_get_us(*pair, [&](const std::string& key) -> Result<bool> {
    SL_ASSIGN(const pull::Received got,
              receiver->get({.key = key, .metadata = &sender, .into = {}}));
    return is_payload(got.piece.bytes());
  });
}

// What a receiver of 0.30 does over its REQ socket, without its Python.
class OldReceiver {
 public:
  static Result<OldReceiver> create(const pull::PullMetadata& sender) {
    OldReceiver receiver;
    SL_ASSIGN(auto library, zmq::Library::load());
    SL_ASSIGN(auto context, zmq::Context::create(std::move(library)));
    SL_ASSIGN(zmq::Dealer dealer,
              zmq::Dealer::connect(std::move(context), {sender.source_host, sender.source_port}));
    receiver.dealer_.emplace(std::move(dealer));
    SL_ASSIGN(receiver.engine_, Engine::create({}));
    SL_ASSIGN(Region region, receiver.engine_->allocate(kPullSmallBytes));
    receiver.region_.emplace(std::move(region));
    SL_ASSIGN(Peer peer, receiver.engine_->connect(
                             Endpoint{sender.source_host, sender.source_rpc_port}.to_string()));
    receiver.peer_.emplace(std::move(peer));
    const Region* const local = &*receiver.region_;
    SL_ASSIGN(Session session, receiver.peer_->session_by_address(std::span(&local, 1)));
    receiver.session_.emplace(std::move(session));
    return receiver;
  }

  Result<bool> get(const std::string& key) {
    SL_TRY(send(pull::omni_request(pull::OmniRequest::kQuery, key)));
    pull::Message answer;
    do {
      SL_ASSIGN(auto frames, dealer_->receive(Deadline::in(std::chrono::seconds(5))));
      if (!frames.has_value()) return lost_process();
      answer = std::move(frames->back());
    } while (pull::is_omni_word(answer, pull::kOmniAckOk));  // That of the get before.
    SL_ASSIGN(const pull::OmniInfo info, pull::read_omni_info(answer));
    const uint64_t local = 0;
    SL_ASSIGN(Transfer transfer,
              session_->read({std::span(&local, 1), info.addresses, info.lengths, {}, {}}));
    SL_TRY(transfer.wait());
    SL_TRY(send(pull::omni_request(pull::OmniRequest::kCleanup, key)));
    return is_payload(region_->bytes());
  }

 private:
  OldReceiver() = default;
  Status send(const pull::Message& message) {
    const std::array<zmq::FrameSpan, 2> frames = {zmq::FrameSpan(), message};
    return dealer_->send(frames, Deadline::in(std::chrono::seconds(5)));
  }

  std::optional<zmq::Dealer> dealer_;
  std::unique_ptr<Engine> engine_;
  std::optional<Region> region_;
  std::optional<Peer> peer_;
  std::optional<Session> session_;
};

Result<double> compat_us() {
  pull::PullOptions options = bench_pull_options(pull::Role::kSender, kPullSmallPool);
  options.compat_030 = true;
  SL_ASSIGN(const auto pair, PullPair::start(options, put_by_turns));
  SL_ASSIGN(OldReceiver receiver, OldReceiver::create(pair->address()));
  return median_get_us(*pair, [&](const std::string& key) { return receiver.get(key); });
}

class Echo final : public zmq::MessageHandler {
 public:
  std::vector<zmq::Frames> on_message(zmq::Frames frames) override { return {std::move(frames)}; }
};

// A bare question and answer over ZeroMQ, as large as a query and its answer.
Result<double> round_trip_us() {
  SL_ASSIGN(ForkedPair process, ForkedPair::start([](PairPage& page) -> Status {
              SL_ASSIGN(auto library, zmq::Library::load());
              SL_ASSIGN(auto context, zmq::Context::create(std::move(library)));
              SL_ASSIGN(zmq::Router router, zmq::Router::bind(context, {}));
              Echo echo;
              SL_ASSIGN(const auto listener,
                        zmq::Listener::start(std::move(router), "bench-echo", echo));
              page.figures[0] = listener->endpoint().port;
              page.set(1);
              return page.wait_for(2) ? Status() : Status(Reason::kTimedOut, "no turn");
            }));
  PairPage& page = process.page();
  if (!page.wait_for(1)) return lost_process();
  SL_ASSIGN(auto library, zmq::Library::load());
  SL_ASSIGN(auto context, zmq::Context::create(std::move(library)));
  SL_ASSIGN(zmq::Dealer dealer,
            zmq::Dealer::connect(std::move(context),
                                 {"127.0.0.1", static_cast<uint16_t>(page.figures[0])}));
  const pull::Message question(128, std::byte{1});
  const std::array<zmq::FrameSpan, 2> frames = {zmq::FrameSpan(), question};
  std::vector<double> took_us;
  for (uint32_t round = 0; round < kPullRounds; ++round) {
    const double start_us = now_us();
    SL_TRY(dealer.send(frames, Deadline::in(std::chrono::seconds(5))));
    SL_ASSIGN(const auto answer, dealer.receive(Deadline::in(std::chrono::seconds(5))));
    if (!answer.has_value()) return lost_process();
    if (round >= kPullWarmUps) took_us.push_back(now_us() - start_us);
  }
  page.set(2);
  return percentile(std::move(took_us), 0.5);
}

}  // namespace

Status run_pull_small_group(SuiteContext& context) {
  SL_ASSIGN(const double own, own_us());
  context.add({.name = "get-4k",
               .value = own,
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kPullSmallTargetUs});
  SL_ASSIGN(const double round_trip, round_trip_us());
  SL_ASSIGN(const double compat, compat_us());
  context.add({.name = "get-4k-compat",
               .value = compat,
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kOverRoundTrip * round_trip + kOverRoundTripUs});
  return Status();
}

}  // namespace stagelink::cli::bench
